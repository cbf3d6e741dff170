"""Tensors as .npy files, one call a file: `{save_dir}/step{N}/rank{R}/{name}_{dtype}_{count}.npy`. Knows no framework.

A wrong argument raises; what goes wrong afterwards is said once, and the program goes on.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tensorprobe.capture.failure import Failures
from tensorprobe.capture.framework import Undo
from tensorprobe.capture.message import show_messages
from tensorprobe.errors import UsageError
from tensorprobe.model.name import slot_file_name
from tensorprobe.model.tree import map_tree
from tensorprobe.store import layout
from tensorprobe.store.folder import Folder
from tensorprobe.store.own_name import STEP

logger = logging.getLogger("tensorprobe")

ArrayOf = Callable[[Any], tuple["np.ndarray[Any, Any]", str]]
"""The content of a tensor as an array, and the name of its dtype."""


class Snapshots:
    """The step and the counts of a process. Counts are per folder and file name, and restart with each step."""

    def __init__(self, tensor_type: type, array_of: ArrayOf, rank_of: Callable[[], int | None]) -> None:
        self._tensor_type = tensor_type
        self._array_of = array_of
        self._rank_of = rank_of
        self._failures = Failures()
        self._said: set[str] = set()
        self._step = 0
        self._counts: dict[tuple[Path, str], int] = {}
        self._looked_at: set[tuple[Path, str]] = set()
        self._watches: set[Watch] = set()
        self._lock = threading.Lock()

    def step(self) -> None:
        """The next step; gradients that have not come by now are not waited for."""
        with self._lock:
            self._step += 1
            self._counts.clear()
            watches, self._watches = self._watches, set()
        for watch in watches:
            watch.end()

    def save(self, save_dir: str | os.PathLike[str], name: str, data: Any) -> None:
        """Save every tensor in `data`; None and what is no tensor is left out."""
        show_messages()
        folder = Path(save_dir)
        found: list[str] = []

        def leaf(value: Any, path: str) -> None:
            if isinstance(value, self._tensor_type):
                found.append(path)
                self._save_tensor(folder, path, value)

        map_tree(data, name, leaf, (self._tensor_type,))
        if not found:
            self.say_once(f"save({name!r}): there is no tensor in it, so nothing is saved")

    def save_array(self, save_dir: Path, name: str, array: np.ndarray[Any, Any], dtype: str) -> None:
        """Save the content of one tensor, where something else has taken it."""
        try:
            folder, file_name = self._next_file(save_dir, f"{name}_{dtype}")
            write_array(folder, file_name, array)
        except Exception as error:
            self._failures.note(f"{name} in {save_dir}", error)

    def say_once(self, text: str) -> None:
        show_messages()
        if text not in self._said:
            self._said.add(text)
            logger.warning("%s", text)

    def hold(self, watch: Watch) -> None:
        """Keep a watch for a gradient alive until it comes, or until the step ends."""
        with self._lock:
            self._watches.add(watch)

    def let_go(self, watch: Watch) -> None:
        with self._lock:
            self._watches.discard(watch)
        watch.end()

    def _save_tensor(self, save_dir: Path, name: str, tensor: Any) -> None:
        try:
            array, dtype = self._array_of(tensor)
        except Exception as error:
            self._failures.note(f"{name} in {save_dir}", error)
        else:
            self.save_array(save_dir, name, array, dtype)

    def _next_file(self, save_dir: Path, stem: str) -> tuple[Folder, str]:
        rank_name = f"rank{self._rank_of() or 0}"
        self._say_what_is_there(save_dir, rank_name)
        with self._lock:
            folder = Folder(save_dir).child(layout.step_name(self._step)).child(rank_name)
            count = self._counts.get((folder.path, stem), 0)
            self._counts[(folder.path, stem)] = count + 1
        return folder, slot_file_name(f"{stem}_{count}", "npy")

    def _say_what_is_there(self, save_dir: Path, rank_name: str) -> None:
        """Before the first file: an earlier run may have left others, which would be taken for some of this one."""
        with self._lock:
            if (save_dir, rank_name) in self._looked_at:
                return
            self._looked_at.add((save_dir, rank_name))
        root = Folder(save_dir)
        steps = [root.child(name) for name in root.names() if STEP.fullmatch(name) and root.is_folder(name)]
        ranks = [step.child(rank_name) for step in steps if step.is_folder(rank_name)]
        count = sum(name.endswith(".npy") for rank in ranks for name in rank.names())
        if count:
            self.say_once(
                f"{save_dir} holds {count} .npy file{'s' * (count > 1)} of an earlier run, in {rank_name} of "
                f"{len(ranks)} step{'s' * (len(ranks) > 1)}: files that get the same name now are replaced, the others "
                "stay"
            )


class Watch:
    """A hook that waits for one gradient, with what must stay alive meanwhile."""

    def __init__(self) -> None:
        self.held: Any = None
        self.undo: Undo | None = None

    def end(self) -> None:
        undo, self.undo, self.held = self.undo, None, None
        if undo is not None:
            undo()


def write_array(folder: Folder, name: str, array: np.ndarray[Any, Any]) -> None:
    """A .npy file that is there whole or not at all."""
    with folder.open_whole(name) as file:
        np.save(file, array, allow_pickle=False)


def check_arguments(function: str, save_dir: Any, name: Any) -> None:
    """The arguments that `save` and `save_grad` share."""
    if not isinstance(save_dir, (str, os.PathLike)):
        raise UsageError(f"{function}(save_dir, name, data): save_dir is a path, not {save_dir!r}")
    if not isinstance(name, str) or not name:
        raise UsageError(f"{function}(save_dir, name, data): the name is a text that is not empty, not {name!r}")
