"""`tensorprobe export`, as a user types it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.command import run_command, run_here
from tests.report.dump_files import forward, write_rank


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    write_rank(tmp_path / "dump" / "step0" / "rank", {"Torch.add.0.forward": forward()})
    return tmp_path / "dump"


def test_events_for_tensorboard_and_the_next_command(dump: Path, tmp_path: Path) -> None:
    done = run_command("export", dump, "--to", "tensorboard", "-o", tmp_path / "events")
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / "events" / "rank"
    assert done.stdout == f"written: {folder}\nnext: tensorboard --logdir {tmp_path / 'events'}\n"
    assert [file.name.startswith("events.out.tfevents.") for file in folder.iterdir()] == [True]


def test_graphs_for_model_explorer_and_the_next_command(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "export", dump, "--to", "model-explorer", "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    names = ["graph.json", "norm.json", "nonfinite.json"]
    assert done.stdout.splitlines() == [
        *(f"written: {tmp_path / 'out' / name}" for name in names),
        f"next: model-explorer {tmp_path / 'out' / names[0]} --node_data_paths="
        + ",".join(str(tmp_path / "out" / name) for name in names[1:]),
    ]


def test_a_folder_with_something_in_it_is_left_alone(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    done = run_here(capsys, "export", dump, "--to", "tensorboard", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert done.stderr == (
        f"error: {tmp_path / 'out'} exists and is not an empty folder: give another one, and nothing is lost.\n"
    )


def test_a_comparison_has_no_place_in_tensorboard(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "export", dump, "--to", "tensorboard", "-o", tmp_path / "out", "--compare", "c.json")
    assert done.returncode == 2
    assert "--compare is for --to model-explorer" in done.stderr
    assert not (tmp_path / "out").exists()


def test_another_tool_is_refused_with_those_there_are(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    done = run_here(capsys, "export", dump, "--to", "netron", "-o", tmp_path / "out")
    assert done.returncode == 2
    assert "tensorboard" in done.stderr
    assert "model-explorer" in done.stderr
