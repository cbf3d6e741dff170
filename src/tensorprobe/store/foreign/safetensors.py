"""Files of safetensors: a file, or a folder of them, of named tensors.

A name that is one of a record and a place in it (`Functional.linear.0.forward.output.0`) becomes that record; any other
is a value that somebody saved, as by `save(x, name)`.
"""

from __future__ import annotations

import re
from pathlib import Path

from tensorprobe.store import stored_file
from tensorprobe.store.container import member_name, read_members
from tensorprobe.store.foreign.step import ForeignStep, Records, make_leaf

SUFFIX = ".safetensors"
_PLACE = re.compile(
    r"(?P<record>.+\.(?:forward|backward)(?:\.\d+)?)\.(?P<field>input|kwargs|output|parameters)\.(?P<place>.+)"
)
_FIELDS = {"input": "input_args", "kwargs": "input_kwargs"}


def find(path: Path) -> list[ForeignStep]:
    if path.suffix == SUFFIX and stored_file.is_file(path):
        return [_make_step([path])]
    names = stored_file.names(path) if stored_file.is_folder(path) else []
    files = [path / name for name in names if name.endswith(SUFFIX)]
    return [_make_step(files)] if files else []


def _make_step(files: list[Path]) -> ForeignStep:
    return ForeignStep(files[0], None, None, lambda: _read(files), {"task": "tensor"})


def _read(files: list[Path]) -> tuple[Records, Records]:
    records: Records = {}
    saved: Records = {}
    for file in files:
        for name, member in read_members(file).items():
            leaf = make_leaf(member.dtype, member.shape, data_name=member_name(file.name, name))
            found = _PLACE.fullmatch(name)
            if found is None:
                saved[f"{name}.0.debug"] = leaf
                continue
            is_backward = ".backward" in found["record"]
            field = found["field"] if is_backward else _FIELDS.get(found["field"], found["field"])
            records.setdefault(found["record"], {}).setdefault(field, {})[found["place"]] = leaf
    return records, saved
