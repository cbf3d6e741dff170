"""Dumps as the tests look at them: plain dicts, and tensors by the name of their file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch


class DumpOnDisk:
    """One step of one process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records: dict[str, Any] = self.read("dump.json")["data"] if (folder / "dump.json").exists() else {}

    def read(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    @property
    def parents(self) -> dict[str, str | None]:
        parents: dict[str, str | None] = self.read("construct.json")
        return parents

    def tensor(self, leaf: Any) -> Any:
        """The stored tensor of a leaf; other leaves give their value."""
        if leaf is None:
            return None
        if "data_name" in leaf:
            return torch.load(self.folder / "dump_tensor_data" / leaf["data_name"], weights_only=True)
        return leaf.get("value")

    def tensors(self, tree: Any) -> Any:
        """The same nesting with the tensors."""
        if isinstance(tree, list):
            return [self.tensors(item) for item in tree]
        if isinstance(tree, dict) and not isinstance(tree.get("type"), str):
            return {key: self.tensors(item) for key, item in tree.items()}
        return self.tensor(tree)


def only_step(dump_path: Path, step: int = 0) -> DumpOnDisk:
    return DumpOnDisk(dump_path / f"step{step}" / "rank")


def leaves_in(fields: Any) -> Iterator[dict[str, Any]]:
    """The tensors of a record."""
    if isinstance(fields, dict) and fields.get("type") == "torch.Tensor":
        yield fields
    elif isinstance(fields, (dict, list)):
        for item in fields.values() if isinstance(fields, dict) else fields:
            yield from leaves_in(item)
