"""The plugin, as pytest runs it, in a process of its own."""

from __future__ import annotations

import os

import pytest

from tests.warm import run_warm

pytest_plugins = ["pytester"]

PROGRAM = """
import os
import pytest
import torch


def model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4, eps=float(os.environ["EPS"])))


@pytest.mark.parametrize("way", ["a/b", "a b"])
def test_model(golden_run, way):
    golden_run(model(), torch.linspace(0, 1, 8).reshape(2, 4))


class TestLoss:
    def test_raises(self, golden_run):
        def fails(x):
            raise ValueError("from the test itself")

        golden_run(torch.exp, torch.ones(2))
        if os.environ["EPS"] == "0.5":
            golden_run(fails, torch.ones(2), name="second")
"""


def run_tests(pytester: pytest.Pytester, eps: str, *options: str) -> str:
    script = pytester.path / "run_pytest.py"
    script.write_text("import sys\nimport pytest\nsys.exit(pytest.main(sys.argv[1:]))\n")
    arguments = [str(script), "-p", "tensorprobe.pytest_plugin", "-p", "no:cacheprovider", *options]
    (ended,) = run_warm("torch", pytester.path, arguments, {**os.environ, "EPS": eps})
    return ended.stdout + ended.stderr


def test_a_test_is_held_against_its_golden_record(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_network=PROGRAM)

    missing = run_tests(pytester, "1e-5")
    assert "3 failed" in missing
    assert (
        "TestLoss::test_raises has no golden record: __tensorprobe__/test_network/TestLoss.test_raises.json does not "
        "exist. Make it with: pytest --tensorprobe-update"
    ) in missing

    written = run_tests(pytester, "1e-5", "--tensorprobe-update")
    assert "3 passed" in written
    assert "written: __tensorprobe__/test_network/TestLoss.test_raises.json" in written
    assert len(list(pytester.path.glob("__tensorprobe__/test_network/*.json"))) == 3

    assert "3 passed" in run_tests(pytester, "1e-5")

    failed = run_tests(pytester, "0.1", "-k", "test_model")
    assert "2 failed" in failed
    assert (
        "The runs first differ at Functional.layer_norm.0.forward in module 1: "
        "called with eps=0.1 where the reference had 1e-05."
    ) in failed
    assert "test_network.py:" in failed
    assert "Traceback" not in failed

    assert "unchanged: " in run_tests(pytester, "1e-5", "--tensorprobe-update", "-k", "TestLoss")


def test_a_renamed_test_a_damaged_record_and_an_exception_are_told_apart(
    pytester: pytest.Pytester,
) -> None:
    path = pytester.makepyfile(test_network=PROGRAM)
    run_tests(pytester, "1e-5", "--tensorprobe-update")
    raised = run_tests(pytester, "0.5", "--tensorprobe-update", "-k", "raises")
    assert "the candidate raised ValueError: from the test itself" in raised
    assert not list(pytester.path.glob("__tensorprobe__/test_network/*second*"))

    path.write_text(PROGRAM.replace("def test_model", "def test_renamed"))
    (pytester.path / "__tensorprobe__/test_network/TestLoss.test_raises.json").write_text("{")
    found = run_tests(pytester, "1e-5")
    assert "test_renamed[a b] has no golden record" in found
    assert "No test has these records any more: test_model[a_b]-" in found
    assert "TestLoss.test_raises.json is damaged (" in found
    assert "Take it from version control again, or make it anew: pytest --tensorprobe-update" in found


@pytest.mark.long
def test_the_workers_of_xdist_write_and_compare_the_same_records(
    pytester: pytest.Pytester,
) -> None:
    pytester.makepyfile(test_network=PROGRAM)
    written = run_tests(pytester, "1e-5", "-n", "2", "--tensorprobe-update")
    records = sorted(path.name for path in pytester.path.glob("__tensorprobe__/test_network/*.json"))
    assert len(records) == 3 and "3 passed" in written
    lines = [line for line in written.splitlines() if line.startswith("written: ")]
    assert lines == [f"written: __tensorprobe__/test_network/{name}" for name in records], "each is told once"
    assert "3 passed" in run_tests(pytester, "1e-5"), "one process compares what several wrote"

    failed = run_tests(pytester, "0.1", "-n", "2", "-k", "test_model")
    assert "2 failed" in failed
    assert failed.count("called with eps=0.1 where the reference had 1e-05.") == 2
