"""The tensors of one dump, when somebody asks for one: from its file, or computed where task `replay` left it out.

A step is executed again at most once, into a folder that goes away with the server. Requests come from several threads.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import cached_property
from threading import Lock
from typing import Any

import numpy as np

from tensorprobe.compare.row import describe_value
from tensorprobe.errors import DumpError, TensorprobeError, UsageError
from tensorprobe.model.name import BACKWARD
from tensorprobe.replay.completion import completed
from tensorprobe.replay.wanted_tensor import WantedTensor, check_computable, describe_missing, make_wanted
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, read_run
from tensorprobe.store import stored_file
from tensorprobe.store.reader import Dump, RankDump
from tensorprobe.store.slot import PlainSlot, Slot
from tensorprobe.store.tensor_file import open_tensor

Array = np.ndarray[Any, Any]


class TensorSource:
    """What one dump holds. Nothing is read before it is asked for."""

    def __init__(self, dump: Dump) -> None:
        self.dump = dump
        self._lock = Lock()
        self._steps: dict[str, _Step] = {}
        self._folders = ExitStack()

    def close(self) -> None:
        """Remove what was computed."""
        self._folders.close()

    def read(self, rank: RankDump) -> Run:
        """All calls of one step of one process."""
        with self._lock:
            return self._step(rank).run

    def open_value(self, rank: RankDump, name: str) -> Array:
        """The tensor of a name, `Functional.linear.3.forward.input.0`; an error that says why there is none."""
        with self._lock:
            wanted = self._step(rank).tensors.get(name)
            if wanted is None:
                raise DumpError(_describe_no_tensor(name, self._step(rank).plain.get(name), rank.name))
            path = rank.tensor_path(wanted.file_name)
            if not stored_file.is_file(path):
                check_computable(wanted, rank)
                path = self._compute(rank).tensor_path(wanted.file_name)
            if not stored_file.is_file(path):
                raise UsageError(describe_missing(wanted, rank))
        return open_tensor(path, wanted.slot.dtype)

    def _step(self, rank: RankDump) -> _Step:
        if rank.name not in self._steps:
            self._steps[rank.name] = _Step(read_run(rank))
        return self._steps[rank.name]

    def _compute(self, rank: RankDump) -> RankDump:
        """The same step with all its tensors. That it cannot be executed again is found out once."""
        step = self._step(rank)
        if step.computed is None:
            try:
                whole = self._folders.enter_context(completed(self.dump.select(rank.step, rank.rank)))
                (step.computed,) = whole.ranks()
            except TensorprobeError as error:
                step.computed = error
        if isinstance(step.computed, TensorprobeError):
            raise step.computed
        return step.computed


class _Step:
    """What is known of one step of one process."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.computed: RankDump | TensorprobeError | None = None
        self.tensors: dict[str, WantedTensor] = {
            _name_slot(call, slot): make_wanted(run.rank, call, slot) for call in run.calls for slot in call.tensors
        }

    @cached_property
    def plain(self) -> dict[str, tuple[Call, PlainSlot]]:
        """What is no tensor, by its name."""
        listed = ((call, slot) for call in self.run.calls for slot in call.slots)
        return {_name_slot(call, slot): (call, slot) for call, slot in listed if isinstance(slot, PlainSlot)}


def _name_slot(call: Call, slot: Slot) -> str:
    return f"{call.name}.{slot.slot}" if slot.slot else call.name


def _describe_no_tensor(name: str, found: tuple[Call, PlainSlot] | None, rank_name: str) -> str:
    """Why there is nothing to draw, in the words of who trained the model."""
    if found is None:
        return f"{name} was not recorded in {rank_name}."
    call, slot = found
    if slot.value is None and call.direction == BACKWARD:
        return f"{name} is None: there is no gradient here, because nothing asked for one or nothing depends on it."
    return f"{name} is {describe_value(slot)}, a plain value and not a tensor: there is nothing to draw."
