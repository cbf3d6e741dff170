"""Dumps of SGLang's `dumper.dump(name, value)` (`DUMPER_ENABLE=1`): a folder for each experiment, and in it a file of
torch.save for each value, named by its tags:

    step=0___rank=1___dump_index=17___name=hidden_states___layer_id=3.pt        {"value": tensor, "meta": {…}}

Older ones begin with `forward_pass_id=` in place of `step=`, and hold the tensor itself. A value is one that somebody
saved, by its name and the tags that tell it from others of that name; those that hooks of modules have dumped are
arguments and results of modules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError
from tensorprobe.store import stored_file
from tensorprobe.store.container import member_name, read_members
from tensorprobe.store.foreign.step import BY_PATH, MODULES, ForeignStep, Records, make_leaf

_BETWEEN = "___"
_FILE = re.compile(r"(?:step|forward_pass_id)=\d+___.+\.pt")
_STEPS = ("step", "forward_pass_id")
_PLACES = frozenset({*_STEPS, "rank", "dump_index", "name", "recompute_status"})
"""Tags that tell when and where a value was dumped; the others tell which it is."""
_HOOKED = re.compile(r"non_intrusive__(?P<module>.*?)\.?(?P<role>inputs|output)(?:\.(?P<place>.+))?")
_HEADER = {"task": "tensor", MODULES: BY_PATH}
_VALUE = "value"


def find(path: Path) -> list[ForeignStep]:
    """Of one experiment, of a folder of such, or of a single file."""
    if _FILE.fullmatch(path.name) and stored_file.is_file(path):
        return _make_steps(path.parent, [path.name])
    if not stored_file.is_folder(path):
        return []
    names = stored_file.names(path)
    found = _make_steps(path, names)
    if found:
        return found
    folders = [path / name for name in names if name.startswith("dump_") and stored_file.is_folder(path / name)]
    if len(folders) != 1:  # of several experiments, one is to be named
        return []
    return _make_steps(folders[0], stored_file.names(folders[0]))


def _make_steps(folder: Path, names: list[str]) -> list[ForeignStep]:
    places: dict[tuple[int, int | None], list[str]] = {}
    for name in names:
        if _FILE.fullmatch(name):
            tags = read_tags(name)
            number = next(tags[key] for key in _STEPS if key in tags)
            rank = tags.get("rank", "")
            places.setdefault((int(number), int(rank) if rank.isdigit() else None), []).append(name)
    return [
        ForeignStep(folder / files[0], step, rank, partial(_read, folder, files), _HEADER)
        for (step, rank), files in sorted(places.items(), key=lambda item: (item[0][0], item[0][1] or 0))
    ]


def read_tags(name: str) -> dict[str, str]:
    """
    >>> read_tags("step=0___rank=1___dump_index=17___name=q.pt")
    {'step': '0', 'rank': '1', 'dump_index': '17', 'name': 'q'}
    """
    pairs = (part.partition("=") for part in name.removesuffix(".pt").split(_BETWEEN))
    return {key: value for key, sign, value in pairs if sign}


def _read(folder: Path, files: list[str]) -> tuple[Records, Records]:
    records: Records = {}
    saved: Records = {}
    seen: Counter[str] = Counter()
    for file in sorted(files, key=_position):
        tags = read_tags(file)
        hooked = _HOOKED.fullmatch(tags.get("name", ""))
        for name, leaf in _iter_leaves(folder / file):
            if hooked is not None:
                field = "output" if hooked["role"] == "output" else "input_args"
                record = f"Module.{hooked['module'] or 'model'}.Module.forward.0"
                records.setdefault(record, {}).setdefault(field, []).append(leaf)
            else:
                value = _name_value(tags) + name.removeprefix(_VALUE)
                saved[f"{value}.{seen[value]}.debug"] = leaf
                seen[value] += 1
    return records, saved


def _iter_leaves(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Its tensors; of a file that cannot be read, why: it costs the others nothing."""
    try:
        members = read_members(file)
    except DumpError as error:
        yield _VALUE, {"type": "torch.Tensor", "dtype": None, "shape": None, "reason": str(error)}
        return
    for name, member in members.items():
        if name == _VALUE or name.startswith(f"{_VALUE}["):
            yield name, make_leaf(member.dtype, member.shape, data_name=member_name(file.name, name))


def _position(file: str) -> int:
    index = read_tags(file).get("dump_index", "")
    return int(index) if index.isdigit() else 0


def _name_value(tags: Mapping[str, str]) -> str:
    """`hidden_states[layer_id=3]`"""
    others = ",".join(f"{key}={value}" for key, value in sorted(tags.items()) if key not in _PLACES)
    return tags.get("name", "value") + (f"[{others}]" if others else "")
