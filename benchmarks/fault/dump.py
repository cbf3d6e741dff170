"""The records of a dump, read from its JSON files alone: the truth must not come from the code that is measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fault.framework import framework_of

UNDEFINED = {"BatchNorm": 1, "LSTM": 3}
"""Primitives of MindSpore that return, from this result on, memory as they found it."""


@dataclass(frozen=True)
class Dump:
    folder: Path
    records: dict[str, dict[str, Any]]
    """In the order of dump.json."""
    stacks: dict[str, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        return list(self.records)

    def names_at(self, mark: str) -> list[str]:
        """The forward records that were made at a place."""
        needle = f"in {mark},"
        return [name for name in self.records if any(needle in frame for frame in self.stacks.get(name, ()))]

    def sources_of(self, name: str) -> set[str]:
        return {leaf["source"] for leaf in self.inputs_of(name) if "source" in leaf}

    def inputs_of(self, name: str) -> list[dict[str, Any]]:
        record = self.records[name]
        fields = ("input",) if "backward" in name else ("input_args", "input_kwargs", "parameters", "buffers")
        return [leaf for field in fields for leaf in find_tensors(record.get(field))]

    def outputs_of(self, name: str) -> list[dict[str, Any]]:
        record = self.records[name]
        if "parameters_grad" in name:
            return list(find_tensors(record))
        return [leaf for field in ("output", "output_kwargs") for leaf in find_tensors(record.get(field))]


def read_dump(folder: Path, step: int = 0) -> Dump:
    folder = folder / f"step{step}" / "rank"
    records = json.loads((folder / "dump.json").read_text())["data"]
    for name, record in records.items():
        kind = name.removesuffix(".forward").rpartition(".")[0].rpartition(".")[2]
        if name.startswith("Primitive.") and name.endswith(".forward") and kind in UNDEFINED:
            del record["output"][UNDEFINED[kind] :]
    stacks = json.loads((folder / "stack.json").read_text())
    frames = {name: tuple(lines) for names, lines in stacks.values() for name in names}
    return Dump(folder, records, frames)


def find_tensors(tree: Any) -> Iterator[dict[str, Any]]:
    if isinstance(tree, dict):
        if isinstance(tree.get("type"), str):
            if "shape" in tree and "dtype" in tree:
                yield tree
            return
        tree = list(tree.values())
    if isinstance(tree, list):
        for item in tree:
            yield from find_tensors(item)


def load_tensor(file: Path, cache: dict[Path, np.ndarray]) -> np.ndarray:
    """By the framework that wrote it."""
    if file not in cache:
        cache[file] = framework_of("mindspore" if file.suffix == ".npy" else "pytorch").load(file)
    return cache[file]


def is_module(name: str) -> bool:
    return name.startswith(("Module.", "Cell."))


def backward_of(name: str) -> str:
    """`Functional.linear.0.forward` to `….backward`, `Module.fc.Linear.forward.0` to `….backward.0`."""
    if is_module(name):
        head, _, index = name.rpartition(".forward.")
        return f"{head}.backward.{index}"
    return name.removesuffix("forward") + "backward"


def forward_of(name: str) -> str:
    """Of the backward of a module."""
    head, _, index = name.rpartition(".backward.")
    return f"{head}.forward.{index}"
