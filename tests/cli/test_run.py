"""`tensorprobe run` on the command line. Programs that it runs: tests/integration/test_run.py."""

from __future__ import annotations

import pytest

from tests.cli.command import run_here


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere.py",), "error: there is no file nowhere.py here"),
        (("--level", "L3", "x.py"), "error: level 'L3' is not one of L0, L1, mix, debug"),
        (("--step", "2-1", "x.py"), "error: step '2-1' ends before it begins"),
        (("--step-at", "epoch", "x.py"), "error: step-at 'epoch' is not one of auto, backward, call"),
        ((), "error: what is to run is missing"),
    ],
)
def test_a_mistake_is_an_error_with_exit_code_two(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    done = run_here(capsys, "run", *arguments)
    assert done.returncode == 2 and done.stderr.startswith(message)


def test_the_help_shows_how_to_run_a_script_a_module_and_a_launcher(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(run_here(capsys, "run", "--help").stdout.split())
    for example in ("tensorprobe run train.py", "run -m package.train", "run torchrun --nproc_per_node 2 train.py"):
        assert example in text
    assert "TENSORPROBE=config.json" in text and "--step-at" in text
