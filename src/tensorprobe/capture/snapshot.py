"""Tensors as .npy files, one call a file: `{save_dir}/step{N}/rank{R}/{name}_{dtype}_{count}.npy`. Knows no
framework."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.errors import UsageError
from tensorprobe.model.name import slot_file_name
from tensorprobe.model.tree import map_tree
from tensorprobe.store import layout

ArrayOf = Callable[[Any], tuple["np.ndarray[Any, Any]", str]]
"""The content of a tensor as an array, and the name of its dtype."""


class Snapshots:
    """The step and the counts of a process. Counts are per folder and file name, and restart with each step."""

    def __init__(self, tensor_type: type, array_of: ArrayOf, rank_of: Callable[[], int | None]) -> None:
        self._tensor_type = tensor_type
        self._array_of = array_of
        self._rank_of = rank_of
        self._step = 0
        self._counts: dict[tuple[Path, str], int] = {}
        self._lock = threading.Lock()

    def step(self) -> None:
        with self._lock:
            self._step += 1
            self._counts.clear()

    def save(self, save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
        """Save every tensor in `data`; None and what is no tensor is left out."""
        check_name(name)
        folder = Path(save_dir)

        def leaf(value: Any, path: str) -> None:
            if isinstance(value, self._tensor_type):
                self._save_tensor(folder, path, value)

        map_tree(data, name, leaf, (self._tensor_type,))

    def _save_tensor(self, save_dir: Path, name: str, tensor: Any) -> None:
        array, dtype = self._array_of(tensor)
        with self._lock:
            folder = save_dir / f"step{self._step}" / f"rank{self._rank_of() or 0}"
            stem = f"{name}_{dtype}"
            count = self._counts.get((folder, stem), 0)
            self._counts[(folder, stem)] = count + 1
        layout.make_folder(folder)
        path = folder / slot_file_name(f"{stem}_{count}", "npy")
        write_array(path, array)


def write_array(path: Path, array: np.ndarray[Any, Any]) -> None:
    """A .npy file that is there whole or not at all."""
    temporary = path.with_name(f".{path.name}"[:200] + layout.TEMPORARY_SUFFIX)
    descriptor = layout.open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    with os.fdopen(descriptor, "wb") as file:
        np.save(file, array, allow_pickle=False)
    temporary.replace(path)


def check_name(name: Any) -> None:
    if not isinstance(name, str) or not name:
        raise UsageError(f"save(save_dir, name, data): the name must be a text that is not empty, not {name!r}")
