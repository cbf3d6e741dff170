"""The files of a step are removed so that nobody meets a half of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensorprobe.store import earlier_run
from tensorprobe.store.earlier_run import put_back_unreplaced, remove_dump
from tensorprobe.store.folder import Folder

FILES = ("construct.json", "dump.json", "run.json", "stack.json")
PLACES = ("step0", "rank")


def write_step(root: Path, step: int) -> Path:
    folder = root / f"step{step}" / "rank"
    (folder / "dump_tensor_data").mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text('{"run_id": "20260101-000000-0123ab"}')
    (folder / "dump_tensor_data" / "Torch.add.0.forward.output.0.pt").write_bytes(b"0")
    return folder


class Killed(BaseException):
    """Comes from nowhere, as a kill does."""


def test_a_removed_step_leaves_nothing_and_the_other_steps_stay(tmp_path: Path) -> None:
    write_step(tmp_path, 0)
    kept = write_step(tmp_path, 1)
    remove_dump(Folder(tmp_path), PLACES)
    assert [path.name for path in tmp_path.iterdir()] == ["step1"] and (kept / "dump.json").is_file()
    remove_dump(Folder(tmp_path), PLACES)  # nothing is there any more


def test_files_of_the_user_in_a_removed_step_stay_where_they_are(tmp_path: Path) -> None:
    (write_step(tmp_path, 0) / "note.txt").write_text("mine")
    remove_dump(Folder(tmp_path), PLACES)
    assert [path.name for path in (tmp_path / "step0" / "rank").iterdir()] == ["note.txt"]


@pytest.mark.parametrize("count", range(5))
def test_a_kill_while_a_step_is_removed_leaves_no_half_of_it_among_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    write_step(tmp_path, 0)
    write_step(tmp_path, 1)
    unlink, done = Folder.unlink, []

    def unlink_some(self: Folder, name: str) -> None:
        if len(done) == count:
            raise Killed
        done.append(name)
        unlink(self, name)

    with monkeypatch.context() as patch:
        patch.setattr(Folder, "unlink", unlink_some)
        with pytest.raises(Killed):
            remove_dump(Folder(tmp_path), PLACES)
    put_back_unreplaced(tmp_path)
    steps = sorted(path.name for path in tmp_path.glob("step*"))
    assert steps == (["step0", "step1"] if count == 0 else ["step1"])
    if count == 0:  # all of it is there still, and may come back
        assert sorted(path.name for path in (tmp_path / "step0" / "rank").glob("*.json")) == list(FILES)
    else:
        for name in earlier_run.replaced_runs(Folder(tmp_path)):
            assert earlier_run.remove_replaced(Folder(tmp_path), name)  # as the next run does
        assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == ["step1"]
