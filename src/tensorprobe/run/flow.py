"""Where the inputs of a call came from: the data flow, as the dump has it, or rebuilt from equal values.

A forward input names the record that produced it. The gradient that goes into a backward call is the sum of what came
back from all places that used its result: where it names no record, those are found through the forward.
Dumps of msprobe name nothing: there, a value that an earlier call returned is taken to come from the latest such call.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.slot import TensorSlot

Fingerprint = tuple[Any, ...]
_MAX_IDLE = 64
"""Of calls in a row that only pass a value on."""


class Flow:
    """The data flow of one run."""

    def __init__(self, run: Run, idle: Collection[str] = ()) -> None:
        self._run = run
        self._calls = run.by_name
        self._idle = idle
        self._inferred: dict[int, str] = {} if run.has_flow else _infer_sources(run)
        self._uses: dict[str, list[tuple[Call, TensorSlot]]] | None = None

    def producer(self, slot: TensorSlot) -> Call | None:
        """The call that computed this value; None when no recorded one did. What is passed on is not computed."""
        source = slot.source or self._inferred.get(id(slot))
        found = self._calls.get(source) if source else None
        return found if found is None or found.name not in self._idle else self._pass_idle(found)

    def _pass_idle(self, found: Call | None) -> Call | None:
        for _ in range(_MAX_IDLE):
            if found is None or found.name not in self._idle:
                break
            found = self._before(found)
        return found

    def _producer(self, slot: TensorSlot) -> Call | None:
        source = slot.source or self._inferred.get(id(slot))
        return self._calls.get(source) if source else None

    def _before(self, idle: Call) -> Call | None:
        """What made the value that it passes on; of a module, the call inside it that made its result."""
        results = [slot for slot in idle.tensors if not slot.is_input and slot.source not in (None, idle.name)]
        given = [slot for slot in idle.tensors if slot.is_input]
        slot = next(iter(results if idle.kind == "module" and results else given), None)
        return None if slot is None else self._producer(slot)

    def forward_of(self, call: Call) -> Call | None:
        """The forward call that a backward or recomputed call belongs to."""
        if call.direction == FORWARD or not call.direction:
            return None
        return self._run.by_name.get(call.in_direction(FORWARD))

    def backward_of(self, call: Call) -> Call | None:
        return self._run.by_name.get(call.in_direction(BACKWARD))

    def contributions(self, backward: Call) -> list[tuple[Call, TensorSlot]]:
        """The gradients whose sum goes into a backward call: what each use of the forward's result gave back."""
        forward = self.forward_of(backward)
        if forward is None:
            return []
        found = []
        for user, used in self._users().get(forward.name, ()):
            behind = self.backward_of(user)
            if behind is None:
                continue
            place = used.slot.replace("input", "output", 1) if used.slot.startswith("input") else used.slot
            found += [(behind, slot) for slot in behind.tensors if not slot.is_input and slot.slot == place]
        return found

    def users(self, producer: Call) -> list[Call]:
        """The API calls that took what this one returned."""
        return [user for user, _ in self._users().get(producer.name, ())]

    def _users(self) -> dict[str, list[tuple[Call, TensorSlot]]]:
        if self._uses is None:
            self._uses = {}
            for call in self._run.calls:
                if call.direction == FORWARD and call.kind == "api":
                    for slot in call.tensors:
                        producer = self.producer(slot) if slot.is_input else None
                        if producer is not None:
                            self._uses.setdefault(producer.name, []).append((call, slot))
        return self._uses


def _infer_sources(run: Run) -> dict[int, str]:
    """For each input the latest earlier call that returned the same value."""
    latest: dict[Fingerprint, str] = {}
    found: dict[int, str] = {}
    for call in run.calls:
        for slot in call.tensors:
            mark = _fingerprint(slot) if slot.is_input else None
            if mark is not None and mark in latest:
                found[id(slot)] = latest[mark]
        for mark in _results(call):
            latest[mark] = call.name
    return found


def _results(call: Call) -> Iterator[Fingerprint]:
    inputs = {_fingerprint(slot) for slot in call.tensors if slot.is_input}
    for slot in call.tensors:
        mark = None if slot.is_input else _fingerprint(slot)
        if mark is not None and mark not in inputs:
            yield mark


def _fingerprint(slot: TensorSlot) -> Fingerprint | None:
    """Equal for a value and its views; None where a coincidence is likely: scalars, constants, unknown."""
    count = slot.element_count
    if slot.checksum and slot.norm is None:
        return (slot.checksum, count)
    if slot.max is None or slot.max == slot.min or count is None or count < 2:
        return None
    return (count, slot.max, slot.min, slot.mean, slot.norm)
