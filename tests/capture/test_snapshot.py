"""The files of `save` and `save_grad`, whatever the framework is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.capture.snapshot import Snapshots, Watch, check_arguments, write_array
from tensorprobe.errors import UsageError
from tensorprobe.store.folder import Folder


class Numbers(list[float]):
    """A tensor."""


def make(rank: int | None = None) -> Snapshots:
    return Snapshots(Numbers, lambda numbers: (np.array(numbers), "float64"), lambda: rank)


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_names_count_per_folder_name_and_dtype_and_restart_with_the_step(tmp_path: Path) -> None:
    snapshots = make()
    for name in ("x", "x", "y"):
        snapshots.save(tmp_path, name, Numbers([1.0]))
    snapshots.step()
    snapshots.save(tmp_path, "x", Numbers([2.0]))
    assert files(tmp_path) == [
        "step0/rank0/x_float64_0.npy",
        "step0/rank0/x_float64_1.npy",
        "step0/rank0/y_float64_0.npy",
        "step1/rank0/x_float64_0.npy",
    ]


def test_the_rank_is_in_the_path(tmp_path: Path) -> None:
    make(7).save(tmp_path, "x", Numbers([1.0]))
    assert files(tmp_path) == ["step0/rank7/x_float64_0.npy"]


def test_a_nesting_is_unfolded_and_what_is_no_tensor_left_out(tmp_path: Path) -> None:
    make().save(tmp_path, "x", {"a": [Numbers([1.0]), None, 3], "b": Numbers([2.0])})
    assert files(tmp_path) == ["step0/rank0/x.a.0_float64_0.npy", "step0/rank0/x.b_float64_0.npy"]


def test_a_watch_ends_with_the_step() -> None:
    snapshots, ended = make(), []
    watch = Watch()
    watch.held, watch.undo = object(), lambda: ended.append(1)
    snapshots.hold(watch)
    snapshots.step()
    snapshots.step()
    assert ended == [1] and watch.held is None


def test_a_watch_that_has_been_let_go_is_not_ended_again() -> None:
    snapshots, ended = make(), []
    watch = Watch()
    watch.undo = lambda: ended.append(1)
    snapshots.hold(watch)
    snapshots.let_go(watch)
    snapshots.step()
    assert ended == [1]


def test_files_of_an_earlier_run_are_said_once_before_the_first_is_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = make()
    for name in ("x", "y"):
        first.save(tmp_path, name, Numbers([1.0]))
    first.step()
    first.save(tmp_path, "x", Numbers([1.0]))
    assert caplog.messages == []
    second = make()
    for _ in range(2):
        second.save(tmp_path, "x", Numbers([2.0]))
    assert caplog.messages == [
        f"{tmp_path} holds 3 .npy files of an earlier run, in rank0 of 2 steps: files that get the same name now are "
        "replaced, the others stay"
    ]


@pytest.mark.parametrize("place", ["step0", "step0/rank0"])
def test_no_link_below_save_dir_is_followed(place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside, link = tmp_path / "outside", tmp_path / "out" / place
    outside.mkdir()
    link.parent.mkdir(parents=True)
    link.symlink_to(outside)
    make().save(tmp_path / "out", "x", Numbers([1.0]))
    assert files(outside) == [] and f"{link} is a link, and no link inside a dump_path is followed" in caplog.text


def test_no_half_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(file: Any, *_: object, **__: object) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", fail)
    with pytest.raises(OSError, match="No space left"):
        write_array(Folder(tmp_path), "x.npy", np.ones(2))
    assert files(tmp_path) == []


@pytest.mark.parametrize(("save_dir", "name"), [(None, "x"), (b"folder", "x"), ("folder", ""), ("folder", 3)])
def test_wrong_arguments_are_refused(save_dir: Any, name: Any) -> None:
    with pytest.raises(UsageError, match=r"save\(save_dir, name, data\): "):
        check_arguments("save", save_dir, name)
