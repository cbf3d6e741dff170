"""`recover` for a dump in a store: its records are recovered on this machine, and what has changed is sent back.

Of its tensors only the names matter: they are not copied.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tensorprobe.store import layout, stored_file
from tensorprobe.store.reader import RankDump, open_dump
from tensorprobe.store.recover import OnFolder, Recovery, recover_dump
from tensorprobe.store.upload import Target


def recover_stored(url: str, *, force: bool = False, on_folder: OnFolder | None = None) -> list[Recovery]:
    """What was done in each rank folder, by the path that its copies have."""
    done = []
    for rank in open_dump(url).select().ranks():
        if any(name.endswith(layout.PART_SUFFIX) for name in stored_file.names(rank.folder)):
            done += _recover(rank, force)
        if on_folder is not None:
            on_folder(rank)
    return done


def _recover(rank: RankDump, force: bool) -> list[Recovery]:
    with tempfile.TemporaryDirectory(prefix="tensorprobe-") as temporary:
        folder = Path(temporary, layout.step_name(rank.step or 0), rank.folder.name)
        before = _copy_names(rank.folder, folder)
        tensors = _copy_names(rank.folder / rank.tensor_folder, folder / rank.tensor_folder, has_content=False)
        actions = [action for found in recover_dump(folder, force=force) for action in found.actions]
        after = {path.name for path in folder.iterdir() if path.is_file()}
        target = Target(stored_file.show(rank.folder))
        target.replace(folder, sorted(after), sorted(before - after))
        left = {path.name for path in (folder / rank.tensor_folder).iterdir()} if tensors else set()
        for name in tensors - left:
            target.remove(stored_file.show(rank.folder / rank.tensor_folder / name))
    return [Recovery(rank.folder, tuple(actions))]


def _copy_names(source: Path, target: Path, *, has_content: bool = True) -> set[str]:
    names = {name for name in stored_file.names(source) if stored_file.is_file(source / name)}
    if names:
        target.mkdir(parents=True, exist_ok=True)
    for name in names:
        if has_content:
            shutil.copyfile(stored_file.bring(source / name), target / name)
        else:
            (target / name).touch()
    return names
