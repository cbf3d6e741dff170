"""A golden record: one recorded run as a small text, for review in a diff.

One line for each distinct tensor, with its statistics and a hash; where a value is met again, a line that says where it
was met first. The order is that of the calls. It holds no tensor, no path and no time. `unfold_golden` makes a dump of
it that `compare` reads like any other.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tensorprobe.errors import DumpError, UsageError
from tensorprobe.model.dtype import short_dtype
from tensorprobe.store.reader import RankDump, open_dump

FORMAT = 1
_FORMAT_KEY = "tensorprobe_golden"
_HEADER = ("framework", "level")
_VALUE_FIELDS = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "Sketch", "nan_count", "inf_count", "hash")
_UNSTABLE_FIELDS = ("tensor", "storage", "offset", "stride", "view_of", "data_name")
"""Numbers that this process gave: of no use without the tensors."""
_PARENT = "parent"
_SAME = "same"
_DIGITS = {"float64": 17, "complex128": 17, "float16": 5, "bfloat16": 5}
_USUAL_DIGITS = 8
"""So few that they can be read, and so many that a comparison takes what is cut off for rounding."""

Golden = dict[str, Any]


def build_golden(folder: Path, test: str) -> Golden:
    """Of a run that was recorded with statistics and hashes."""
    ranks = list(open_dump(folder).ranks())
    if len(ranks) != 1:
        raise UsageError(f"a golden record holds one step of one process, and {test} recorded {len(ranks)} of them.")
    rank = ranks[0]
    folded = _fold_records(rank)
    if not any(map(_holds_tensor, folded.values())):
        raise UsageError(
            f"{test} recorded no tensor, so there is nothing to compare. Give golden_run a function that computes with "
            "tensors while it runs, or that returns them."
        )
    versions = rank.run.get("versions")
    known = versions if isinstance(versions, dict) else {}
    return {
        _FORMAT_KEY: FORMAT,
        "test": test,
        **{key: rank.header.get(key) for key in _HEADER},
        "versions": {name: known[name] for name in ("torch", "mindspore") if name in known},
        **folded,
    }


def _fold_records(rank: RankDump) -> dict[str, Any]:
    """The calls, and what was saved: the result."""
    names: dict[str, str] = {}

    def fold(leaf: dict[str, Any], name: str) -> dict[str, Any]:
        value = {key: _round(leaf[key], leaf.get("dtype")) for key in _VALUE_FIELDS if key in leaf}
        rest = {key: item for key, item in leaf.items() if key not in (*_VALUE_FIELDS, *_UNSTABLE_FIELDS)}
        first = names.setdefault(json.dumps(value), name) if "hash" in value else name
        return {**(value if first == name else {_SAME: first}), **rest}

    folded: dict[str, Any] = {}
    for record in rank.records():
        fields = {key: item for key, item in record.fields.items() if item not in ({}, [])}
        folded[record.name] = _map_leaves(fields, record.name, fold)
        parent = rank.parents.get(record.name)
        if parent is not None:
            folded[record.name][_PARENT] = parent
    saved = {one.name: _map_leaves(one.tree, one.name, fold) for one in rank.saved_values()}
    return {"records": folded, "saved": saved}


def _map_leaves(tree: Any, name: str, leaf: Callable[[dict[str, Any], str], dict[str, Any]]) -> Any:
    """The same nesting, with other tensors."""
    if isinstance(tree, dict) and _is_tensor(tree):
        return leaf(tree, name)
    if isinstance(tree, dict):
        return {key: _map_leaves(item, f"{name}.{key}", leaf) for key, item in tree.items()}
    if isinstance(tree, list):
        return [_map_leaves(item, f"{name}.{index}", leaf) for index, item in enumerate(tree)]
    return tree


def _is_tensor(node: Mapping[str, Any]) -> bool:
    return isinstance(node.get(_SAME), str) or (isinstance(node.get("type"), str) and "dtype" in node)


def _round(value: Any, dtype: Any) -> Any:
    if isinstance(value, list):
        return [_round(item, None if dtype is None else "sketch") for item in value]
    if not isinstance(value, float):
        return value
    return float(f"{value:.{_DIGITS.get(short_dtype(dtype), _USUAL_DIGITS)}g}")


def write_golden(path: Path, golden: Golden) -> bool:
    """False if the same is there already, whichever version of the framework wrote it."""
    try:
        if _text_without_versions(read_golden(path, golden["test"])) == _text_without_versions(golden):
            return False
    except DumpError:
        pass  # it is not there, or damaged: that is what an update mends
    try:
        _replace_file(path, "\n".join(_lines(golden, "")) + "\n")
    except OSError as error:
        raise DumpError(f"the golden record {path} cannot be written ({error}). Make its folder writable.") from error
    return True


def _text_without_versions(golden: Golden) -> str:
    """As text: a NaN does not equal itself."""
    return json.dumps({**golden, "versions": None})


def _replace_file(path: Path, text: str) -> None:
    """In one go: another process may read it now."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".part")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="\n") as file:
            file.write(text)
        Path(name).chmod(0o666 & ~_umask())  # it is reviewed and committed like the test beside it
        Path(name).replace(path)
    finally:
        Path(name).unlink(missing_ok=True)  # where it did not come that far


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _lines(tree: Any, indent: str) -> Iterator[str]:
    """JSON with one line for each tensor, and for whatever holds none."""
    if not _holds_tensor(tree):
        yield f"{indent}{json.dumps(tree)}"
        return
    is_object = isinstance(tree, dict)
    yield f"{indent}{'{' if is_object else '['}"
    items = list(tree.items()) if is_object else [(None, item) for item in tree]
    for place, (key, item) in enumerate(items):
        lines = list(_lines(item, f"{indent} "))
        if key is not None:
            lines[0] = f"{indent} {json.dumps(key)}: {lines[0].lstrip()}"
        lines[-1] += "," if place < len(items) - 1 else ""
        yield from lines
    yield f"{indent}{'}' if is_object else ']'}"


def _holds_tensor(tree: Any) -> bool:
    if isinstance(tree, dict):
        return not _is_tensor(tree) and (_FORMAT_KEY in tree or any(map(_is_or_holds, tree.values())))
    return isinstance(tree, list) and any(map(_is_or_holds, tree))


def _is_or_holds(node: Any) -> bool:
    return (isinstance(node, dict) and _is_tensor(node)) or _holds_tensor(node)


def read_golden(path: Path, test: str) -> Golden:
    """DumpError for one that is missing, damaged or newer, UsageError for one of another test; both say what to do."""
    try:
        golden = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DumpError(f"{path} does not exist. Make it with: pytest --tensorprobe-update") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DumpError(
            f"{path} is damaged ({error}). Take it from version control again, or make it anew: "
            "pytest --tensorprobe-update"
        ) from error
    found = golden.get(_FORMAT_KEY) if isinstance(golden, dict) else None
    if isinstance(found, int) and found > FORMAT:
        raise DumpError(
            f"{path} was written by a newer tensorprobe: its format is {found}, and this version reads {FORMAT}. "
            "Install that version, or make the record anew: pytest --tensorprobe-update"
        )
    if found != FORMAT or not isinstance(golden.get("records"), dict):
        raise DumpError(f"{path} is no golden record. Make it anew: pytest --tensorprobe-update")
    if golden.get("test") != test:
        raise UsageError(  # an update must not write over it
            f"{path} is the golden record of {golden.get('test')!r}, and {test!r} would have the same file. "
            "Rename one of the two tests."
        )
    return dict(golden)


def unfold_golden(golden: Golden, path: Path, folder: Path) -> None:
    """A dump in `folder`, for `compare`. `path` is where the record came from."""
    try:
        _write_dump(golden, folder)
    except (KeyError, AttributeError, TypeError) as error:
        raise DumpError(
            f"{path} is damaged ({error!r}). Take it from version control again, or make it anew: "
            "pytest --tensorprobe-update"
        ) from error


def _write_dump(golden: Golden, folder: Path) -> None:
    values: dict[str, dict[str, Any]] = {}

    def unfold(leaf: dict[str, Any], name: str) -> dict[str, Any]:
        if _SAME not in leaf:
            values[name] = {key: leaf[key] for key in _VALUE_FIELDS if key in leaf}
            return leaf
        return {**values[leaf[_SAME]], **{key: item for key, item in leaf.items() if key != _SAME}}

    records, parents = {}, {}
    for name, fields in golden["records"].items():
        records[name] = _map_leaves(fields, name, unfold)
        parents[name] = records[name].pop(_PARENT, None)
    saved = {name: _map_leaves(tree, name, unfold) for name, tree in golden["saved"].items()}
    header = {"task": "statistics", **{key: golden.get(key) for key in _HEADER}, "dump_data_dir": None}
    rank = folder / "step0" / "rank"
    rank.mkdir(parents=True)
    (rank / "dump.json").write_text(json.dumps({**header, "data": records}), encoding="utf-8")
    (rank / "debug.json").write_text(json.dumps({**header, "data": saved}), encoding="utf-8")
    (rank / "construct.json").write_text(json.dumps(parents), encoding="utf-8")
