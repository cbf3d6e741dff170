"""Logs of PyTorch's `torch.utils._debug_mode.DebugMode`, as `debug_string()` gives them, in a text file.

    torch.nn.functional.relu(t$4: f32[5, 3], inplace=False)  ->  t$5: f32[5, 3]
        aten::relu(t$4: f32[5, 3])  ->  t$5: f32[5, 3]  # {'input_hash': ((11.9,), {}), 'hash': 9.03}

The outermost call of a nesting is a record, but for `backward`, whose calls are records themselves. With
`record_ids=True` the log tells where values come from. With `log_tensor_hashes` each value has a hash, a sum of
magnitudes: two logs are compared by them, exactly; a dump of ours has none, and is compared by shapes and dtypes.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorprobe.regular_file import open_regular
from tensorprobe.store import stored_file
from tensorprobe.store.foreign.step import ForeignStep, Records, make_leaf

_LINE = re.compile(
    r"(?P<indent> *)(?P<name>aten::[\w.]+|torch[\w.]*\.\w+|<(?:built-in )?method '?\w+'? of .*? objects?.*?>)"
    r"\((?P<arguments>.*)\)(?:  ->  (?P<results>.*?))?(?:  # (?P<log>\{.*\}))?"
)
_TENSOR = re.compile(r"\b[a-z]*t(?P<id>\$\d+)?: (?P<dtype>[a-z]\w*)\[(?P<shape>[\d, ]*)\]")
_METHOD = re.compile(r"<(?:built-in )?method '?(\w+)'?")
_SHAPE_ONLY = re.compile(r"[:.](?:\w+_like|new_\w+|empty\w*)(?:\.\w+)?$")
"""Calls that read no value of what they are given: that their results agree says nothing of it."""
_DTYPES = {
    "f64": "float64",
    "f32": "float32",
    "f16": "float16",
    "bf16": "bfloat16",
    "c64": "complex64",
    "c128": "complex128",
    "i64": "int64",
    "i32": "int32",
    "i16": "int16",
    "i8": "int8",
    "u8": "uint8",
    "b8": "bool",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
}
_SUFFIXES = (".txt", ".log")
_HEAD_BYTES = 1 << 16
_MAX_LOG_CHARACTERS = 100_000


def find(path: Path) -> list[ForeignStep]:
    if path.suffix not in _SUFFIXES or not stored_file.is_file(path):
        return []
    with open_regular(stored_file.bring(path)) as file:
        head = file.read(_HEAD_BYTES).decode("utf-8", "replace")
    if not any(map(_LINE.fullmatch, head.splitlines())):
        return []
    return [ForeignStep(path, None, None, lambda: (_read(path), {}), {"task": "statistics", "level": "L1"})]


def _read(path: Path) -> Records:
    with open_regular(stored_file.bring(path)) as file:
        lines = file.read().decode("utf-8", "replace").splitlines()
    records: Records = {}
    makers: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for line in _iter_outermost(lines):
        call = _name_call(line["name"])
        name = f"{call}.{counts[call]}.forward"
        counts[call] += 1
        given_hashes, hashes = _read_hashes(line["log"])
        given = list(_iter_leaves(line["arguments"], given_hashes, makers))
        results = list(_iter_leaves(line["results"] or "", hashes, {}))
        records[name] = {"input_args": given, "input_kwargs": {}, "output": results}
        for tensor in _TENSOR.finditer(line["results"] or ""):
            if tensor["id"]:
                makers.setdefault(tensor["id"], name)
    return records


def _iter_outermost(lines: list[str]) -> Iterator[re.Match[str]]:
    """Those that are inside no other; a backward pass is no call of its own."""
    depth: int | None = None
    for line in lines:
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        indent = len(found["indent"])
        if depth is not None and indent > depth:
            continue
        depth = None
        if found["name"].endswith(".backward") or _SHAPE_ONLY.search(found["name"]):
            continue
        if not found["name"].startswith("aten::"):
            depth = indent
        yield found


def _name_call(text: str) -> str:
    method = _METHOD.match(text)
    if method:
        return f"Tensor.{method[1]}"
    name = text.rpartition(".")[2]
    if text.startswith("aten::"):
        return f"Torch.{text.removeprefix('aten::').partition('.')[0]}"
    if text.startswith(("torch.nn.functional.", "torch._C._nn.")):
        return f"Functional.{name}"
    return f"Tensor.{name}" if text.startswith(("torch._tensor.", "torch.Tensor.")) else f"Torch.{name}"


def _iter_leaves(text: str, hashes: list[float], makers: dict[str, str]) -> Iterator[dict[str, Any]]:
    tensors = list(_TENSOR.finditer(text))
    known: list[float | None] = list(hashes) if len(hashes) == len(tensors) else [None] * len(tensors)
    for tensor, value in zip(tensors, known, strict=True):
        shape = tuple(int(size) for size in tensor["shape"].split(",") if size.strip())
        more: dict[str, Any] = {} if value is None else {"hash": f"{value:+.17e}"}
        if tensor["id"] in makers:
            more["source"] = makers[tensor["id"]]
        yield make_leaf(_DTYPES.get(tensor["dtype"], tensor["dtype"]), shape, **more)


def _read_hashes(log: str | None) -> tuple[list[float], list[float]]:
    """Of what went in, and of what came out; empty where the log has none, or one that is no number."""
    if log is None or len(log) > _MAX_LOG_CHARACTERS:
        return [], []
    try:
        found = ast.literal_eval(log)
    except (ValueError, SyntaxError, RecursionError, MemoryError):  # nan is no literal
        return [], []
    return list(_iter_numbers(found.get("input_hash"))), list(_iter_numbers(found.get("hash")))


def _iter_numbers(tree: Any) -> Iterator[float]:
    if isinstance(tree, (list, tuple)):
        for item in tree:
            yield from _iter_numbers(item)
    elif isinstance(tree, dict):
        yield from _iter_numbers(list(tree.values()))
    elif isinstance(tree, float):
        yield tree
