"""Activation checkpointing: what a region of the program computed in the forward, and computes again in the backward.

A recomputed call has the name and number of the forward call that it repeats, with the direction `recompute`: counters
do not move. Its values must be those of the forward; whether they are is known once both have been fetched. Holds names
and descriptions, never tensors.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tensorprobe.capture.call import Call
from tensorprobe.capture.coverage import Coverage
from tensorprobe.capture.framework import Undo
from tensorprobe.model.name import recompute_name
from tensorprobe.model.record import LateField, Number, TensorLeaf
from tensorprobe.model.undefined import is_undefined

logger = logging.getLogger("tensorprobe")

REPEATED_ALONE = "recomputed call that the forward did not make"
_COMPARED_FIELDS = {"input_args": "input", "input_kwargs": "kwargs", "output": "output"}


class Region:
    """The calls that a checkpointed function makes in the forward, in their order, by stem."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls: dict[str, list[Call]] = {}

    def __bool__(self) -> bool:
        return bool(self._calls)

    def add(self, call: Call) -> None:
        self._calls.setdefault(call.stem, []).append(call)

    def find(self, stem: str, number: int) -> Call | None:
        """The call of this stem that came after `number` others."""
        calls = self._calls.get(stem, ())
        return calls[number] if number < len(calls) else None


class Replay:
    """One recomputation of a region: each call of it repeats the next forward call with the same stem."""

    __slots__ = ("_counts", "_region", "has_graph", "is_exact")

    def __init__(self, region: Region, *, has_graph: bool, is_exact: bool) -> None:
        self._region = region
        self._counts: dict[str, int] = {}
        self.has_graph = has_graph
        """The gradients come through the graph made here, as in a reentrant checkpoint; otherwise through that of the
        forward."""
        self.is_exact = is_exact
        """All that is called belongs to the recomputation; otherwise only what is called with gradients enabled."""

    def next_call(self, stem: str) -> Call | None:
        """The forward call that a call of `stem` repeats now; None if the forward made no such call."""
        number = self._counts.get(stem, 0)
        self._counts[stem] = number + 1
        return self._region.find(stem, number)


class ThreadState(threading.local):
    """What is open in each thread."""

    def __init__(self) -> None:
        self.modules: list[Call] = []
        self.functions: list[str] = []
        """The autograd Functions of the program that are running: what they call is inside of them."""
        self.regions: list[Region] = []
        """Around the calls of the forward that activation checkpointing will repeat."""
        self.replay: Replay | None = None
        """The recomputation that is running."""


class Recomputation:
    """The regions and replays of a session."""

    def __init__(self, threads: ThreadState) -> None:
        self._threads = threads
        self._has_warned = False

    @property
    def replay(self) -> Replay | None:
        """The one that is running in this thread."""
        return self._threads.replay

    @property
    def follows_gradients(self) -> bool:
        """False in a recomputation whose graph no backward will pass through."""
        replay = self._threads.replay
        return replay is None or replay.has_graph

    def open_region(self, region: Region | None = None) -> Region:
        """The calls from now on, in this thread, may be repeated in the backward."""
        region = Region() if region is None else region
        self._threads.regions.append(region)
        return region

    def close_region(self, region: Region) -> None:
        regions = self._threads.regions
        while regions and regions.pop() is not region:
            pass

    def open_function(self, call: Call) -> None:
        """An autograd Function of the program begins: what is called from now on is inside of it."""
        self._threads.functions.append(call.forward_name)

    def close_function(self, call: Call) -> None:
        functions = self._threads.functions
        while functions and functions.pop() != call.forward_name:
            pass

    def begin_replay(self, replay: Replay) -> Undo:
        """A region is recomputed in this thread, until what is returned is called."""
        state = self._threads
        before = state.replay, state.modules
        state.replay, state.modules = replay, []

        def end() -> None:
            state.replay, state.modules = before

        return end

    @contextmanager
    def set_aside(self, is_wanted: bool) -> Iterator[None]:
        """What is called inside is no repetition, if that is wanted."""
        state = self._threads
        replay, state.replay = state.replay, None if is_wanted else state.replay
        try:
            yield
        finally:
            state.replay = replay

    def repeat(self, stem: str, coverage: Coverage, *, is_counted: bool) -> Call:
        """A call in a replay: the repetition of one of the forward's."""
        state, replay = self._threads, self._threads.replay
        original = replay.next_call(stem) if replay is not None else None
        if replay is None or original is None:
            coverage.add_unseen(REPEATED_ALONE)
            return Call(stem, stem, stem, None)
        coverage.recomputed += is_counted
        for region in state.regions:
            region.add(original)
        parent = state.modules[-1] if state.modules else original.parent
        call = Call(stem, recompute_name(original.forward_name), original.backward_name, parent)
        call.original = original
        call.module_path, call.stack = original.module_path, original.stack
        call.keeps_forward = original.keeps_forward
        call.keeps_backward = original.keeps_backward and replay.has_graph
        return call

    def add_check(self, original: Call, fields: dict[str, Any], coverage: Coverage) -> None:
        """Say that a call is a repetition, and, when the values are known, where it does not repeat."""

        def report(slots: list[str]) -> None:
            coverage.recomputed_differently += 1
            if not self._has_warned:
                self._has_warned = True
                logger.warning(
                    "%s computed something else when it was recomputed in the backward (%s): its gradients are not "
                    "those of the forward. Further calls like it are counted, and marked in dump.json",
                    original.forward_name,
                    ", ".join(slots),
                )

        fields["recomputed"] = True
        if original.kept_fields is not None:
            fields["differs_from_forward"] = ForwardCheck(original.kept_fields, fields, report)


class ForwardCheck(LateField):
    """Which slots of a recomputed call differ from those of its forward; None where nothing was found and not all could
    be compared."""

    def __init__(
        self, forward: dict[str, Any], recomputed: dict[str, Any], report: Callable[[list[str]], None]
    ) -> None:
        self._forward = forward
        self._recomputed = recomputed
        self._report = report

    def resolve(self) -> list[str] | None:
        fields = [field for field in _COMPARED_FIELDS if field in self._forward]
        pairs = [
            pair
            for field in fields
            for pair in pair_leaves(self._forward[field], self._recomputed.get(field), _COMPARED_FIELDS[field])
        ]
        differing = [(path, second) for path, first, second in pairs if not is_same(first, second)]
        if any(path.startswith("output") and leaf.requires_grad for path, leaf in differing):
            self._report([path for path, _ in differing])
        is_whole = all(field in self._recomputed for field in fields)  # it may have stopped inside the call
        is_measured = any(
            first.value.stats is not None and second.value.stats is not None for _, first, second in pairs
        )
        return [path for path, _ in differing] if differing or (is_whole and is_measured) else None


def pair_leaves(first: Any, second: Any, path: str) -> Iterator[tuple[str, TensorLeaf, TensorLeaf]]:
    """The tensors that two trees have at the same places."""
    if isinstance(first, TensorLeaf) and isinstance(second, TensorLeaf):
        yield path, first, second
    elif isinstance(first, list) and isinstance(second, list):
        for number, (left, right) in enumerate(zip(first, second, strict=False)):
            yield from pair_leaves(left, right, f"{path}.{number}")
    elif isinstance(first, dict) and isinstance(second, dict):
        for key in first.keys() & second.keys():
            yield from pair_leaves(first[key], second[key], f"{path}.{key}")


def is_same(first: TensorLeaf, second: TensorLeaf) -> bool:
    """By all that is known of both: the same bits give the same numbers."""
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if is_undefined(first.note) or is_undefined(second.note):
        return True
    if first.value.digest is not None and second.value.digest is not None:
        return first.value.digest == second.value.digest
    left, right = first.value.stats, second.value.stats
    if left is None or right is None or left.reason is not None or right.reason is not None:
        return True
    return (left.nan_count, left.inf_count) == (right.nan_count, right.inf_count) and all(
        is_same_number(*numbers)
        for numbers in (
            (left.max, right.max),
            (left.min, right.min),
            (left.mean, right.mean),
            (left.norm, right.norm),
        )
    )


def is_same_number(first: Number, second: Number) -> bool:
    return first == second or (first != first and second != second)
