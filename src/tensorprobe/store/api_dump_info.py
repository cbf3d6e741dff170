"""The info file of an api_dump: one JSON list a line, never a pickle in spite of its name.

    ["NN_Conv2d_0_forward_output", 1, [], "torch.float32", [2, 5, 4, 4], [max, min, mean]]

A line is one tensor or one number: its slot, a 1 and an empty list that mean nothing any more, dtype, shape,
statistics. Inputs are numbered, and so are the results of a call that has several; a single result is not, nor is its
gradient. Later versions of TroubleShooter add a checksum and a norm.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from tensorprobe.model.record import Number, TensorLeaf
from tensorprobe.store.encode import encode_tree

_SLOT = re.compile(r"(.+_(forward|backward|recompute))_(input|output|kwargs)(?:\.(.+))?", re.DOTALL)
_ARRAY = "numpy.ndarray"
_NUMBERS = ("bool", "int", "float")
_SINGLE = {"forward": "output", "backward": "input", "recompute": "output"}
"""What stands without a number where there is only one of it: the result, and the gradient of the result."""
_ROLES = {
    "input_args": "input",
    "input_kwargs": "kwargs",
    "input": "input",
    "output": "output",
    "output_kwargs": "kwargs",
}
_NO_SUMMARY = float("nan")


def iter_lines(name: str, fields: dict[str, Any], *, is_filtered: bool) -> Iterator[str]:
    """The lines of one record; filtered, only of tensors of floating-point numbers that are more than one number."""
    direction = name.rpartition("_")[2]
    for field, role in _ROLES.items():
        if field in fields:
            tree, slot = fields[field], f"{name}_{role}"
            if role == _SINGLE.get(direction) and isinstance(tree, list) and len(tree) == 1:
                tree = tree[0]
            for path, leaf in _iter_leaves(tree, slot):
                line = _make_line(path, leaf, is_filtered)
                if line is not None:
                    yield encode_tree(line)


def is_saved(leaf: TensorLeaf, *, is_filtered: bool) -> bool:
    """Is a tensor saved?"""
    return not is_filtered or passes_filter(leaf.dtype, leaf.shape)


def passes_filter(dtype: str, shape: Sequence[int]) -> bool:
    """With the filter, a tensor that holds no floating-point numbers, or a single one, is not saved."""
    return "float" in dtype.lower() and len(shape) > 0 and 0 not in shape


def is_number(value: Any) -> bool:
    """Is it a value that is no tensor and has a line where nothing is filtered?"""
    return type(value) in (bool, int, float)


def parse_line(line: Any) -> tuple[str, str, str, dict[str, Any]] | None:
    """The record, the role, the place in it (`0`, `1.0`, empty) and the leaf of a line; None if it is none."""
    if not isinstance(line, list) or len(line) < 6 or not isinstance(line[0], str):
        return None
    found = _SLOT.fullmatch(line[0])
    if found is None:
        return None
    record, _, role, place = found.groups()
    return record, role, place or "", _read_leaf(line)


def _make_line(slot: str, leaf: Any, is_filtered: bool) -> list[Any] | None:
    if isinstance(leaf, TensorLeaf):
        if leaf.type == _ARRAY or not is_saved(leaf, is_filtered=is_filtered):
            return None
        stats = leaf.value.stats
        summary = [stats.max, stats.min, stats.mean] if stats is not None else [None] * 3
        return [slot, 1, [], leaf.dtype, list(leaf.shape), [_number(number) for number in summary]]
    if not is_filtered and isinstance(leaf, dict) and leaf.get("type") in _NUMBERS:
        return [slot, 1, [], f"<class '{leaf['type']}'>", [], [leaf.get("value")] * 3]
    return None


def _number(number: Number) -> Number:
    return _NO_SUMMARY if number is None else number


def _iter_leaves(tree: Any, slot: str) -> Iterator[tuple[str, Any]]:
    if isinstance(tree, list):
        for index, item in enumerate(tree):
            yield from _iter_leaves(item, f"{slot}.{index}")
    elif isinstance(tree, dict) and not isinstance(tree.get("type"), str):
        for key, item in tree.items():
            yield from _iter_leaves(item, f"{slot}.{key}")
    else:
        yield slot, tree


def _read_leaf(line: list[Any]) -> dict[str, Any]:
    dtype, shape, summary = line[3], line[4], line[5]
    if isinstance(dtype, str) and dtype.startswith("<class '"):
        value = summary[0] if isinstance(summary, list) and summary else None
        return {"type": dtype[8:].rstrip("'>"), "value": value}
    leaf: dict[str, Any] = {"type": "Tensor", "dtype": dtype, "shape": shape}
    if isinstance(summary, list):
        leaf.update(zip(("Max", "Min", "Mean"), summary, strict=False))
    if len(line) > 7:
        leaf.update({"md5": line[6], "Norm": line[7]})
    return leaf
