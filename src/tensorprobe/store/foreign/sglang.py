"""Dumps of SGLang's `--debug-tensor-dump-output-folder`: a folder for each process, `TP0_PP0_Rank0_pid123`, and in it a
file of torch.save for each forward pass, `Pass00000.pt`, with the results of modules by their paths.

A pass is a step. What follows the module `model` in a pass (its own result, that of the head) is written into the file
of the next one: that is where it is found.
"""

from __future__ import annotations

import re
from pathlib import Path

from tensorprobe.store import stored_file
from tensorprobe.store.container import member_name, read_members
from tensorprobe.store.foreign.step import BY_PATH, MODULES, ForeignStep, Records, make_leaf

_PROCESS = re.compile(r"TP\d+_PP\d+_Rank(\d+)_pid\d+")
_PASS = re.compile(r"Pass(\d+)\.pt")
_HEADER = {"task": "tensor", MODULES: BY_PATH}
_BATCH = ".forward_batch_info."
"""In the names of what the model was given: no results of modules, but values that were saved."""
_LISTED = re.compile(r"\[\d+\]$")
"""Behind it where it has several results."""


def find(path: Path) -> list[ForeignStep]:
    if _PASS.fullmatch(path.name) and stored_file.is_file(path):
        return [_make_step(path, path.parent)]
    if not stored_file.is_folder(path):
        return []
    folders = [path] if _PROCESS.fullmatch(path.name) else []
    folders += [path / name for name in stored_file.names(path) if _PROCESS.fullmatch(name)]
    stored_file.list_all(folders)
    return [
        _make_step(folder / name, folder)
        for folder in folders
        for name in stored_file.names(folder)
        if _PASS.fullmatch(name)
    ]


def _make_step(file: Path, folder: Path) -> ForeignStep:
    process, number = _PROCESS.fullmatch(folder.name), _PASS.fullmatch(file.name)
    rank = int(process[1]) if process else None
    return ForeignStep(file, int(number[1]) if number else None, rank, lambda: _read(file), _HEADER)


def _read(file: Path) -> tuple[Records, Records]:
    records: Records = {}
    saved: Records = {}
    for name, member in read_members(file).items():
        leaf = make_leaf(member.dtype, member.shape, data_name=member_name(file.name, name))
        if _BATCH in name:
            saved[f"{name}.0.debug"] = leaf
        else:
            module = _LISTED.sub("", name)
            records.setdefault(f"Module.{module}.Module.forward.0", {"output": []})["output"].append(leaf)
    return records, saved
