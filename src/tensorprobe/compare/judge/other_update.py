"""What a step makes of its parameters, by their statistics: two runs with the same gradients may have other optimizers.

Only what was recorded is told: an optimizer whose calls are in the dump. Where a gradient is nothing but rounding, an
optimizer may make a whole step of it, in any direction: such parameters say nothing. Nor do biases, of which this is
true in part: of a joined projection that of the keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tensorprobe.compare.judge.gradient_comparison import find_gradient_sizes, is_same_leaf
from tensorprobe.compare.judge.own_record import is_measured, read_number
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.sketch import estimate_distance
from tensorprobe.store.slot import TensorSlot

_NOISE = 1e-4
"""Of the largest gradient: less may be rounding."""
_LEAST_SHARE = 0.05
"""Of what a step changes: single numbers whose gradients are rounding may differ by so much together."""
_UNITS = 8
"""Of the parameter: so much is rounding."""


@dataclass(frozen=True)
class Change:
    """One parameter, before it is changed and after that."""

    parameter: str
    before: TensorSlot
    after: TensorSlot
    call: Call
    """That wrote to it last."""

    @property
    def size(self) -> float:
        return _distance(self.before, self.after)


def find_other_updates(reference: Run, candidate: Run) -> list[tuple[Change, Change]]:
    """The parameters that start the same, and are changed otherwise, in the order of the reference's updates."""
    others = list(_iter_changes(candidate))
    found = []
    for one in _iter_changes(reference):
        alike = [other for other in others if is_same_leaf(one.before, other.before)]
        if len(alike) == 1 and _differ(one, alike[0]):
            found.append((one, alike[0]))
    return found


def _iter_changes(run: Run) -> Iterator[Change]:
    sizes = find_gradient_sizes(run)
    least = _NOISE * max(sizes.values(), default=0.0)
    first: dict[str, TensorSlot] = {}
    last: dict[str, tuple[TensorSlot, Call]] = {}
    for call in run.calls:
        for slot in call.tensors if call.direction == FORWARD else ():
            if slot.parameter is None or not is_measured(slot):
                continue
            if slot.is_input:
                first.setdefault(slot.parameter, slot)
            elif call.kind == "api":
                last[slot.parameter] = slot, call
    for name, (after, call) in last.items():
        if name in first and len(after.shape or ()) > 1 and sizes.get(name, 0.0) > least:
            yield Change(name, first[name], after, call)


def _differ(one: Change, other: Change) -> bool:
    rounding = _UNITS * (unit_roundoff(one.after.dtype) or 0.0) * read_number(one.after.norm)
    allowed = max(_LEAST_SHARE * max(one.size, other.size), rounding)
    return _distance(one.after, other.after) > allowed


def _distance(first: TensorSlot, second: TensorSlot) -> float:
    """About; at least where the sketches are not of one order."""
    gap = abs(read_number(first.norm) - read_number(second.norm))
    if first.sketch is None or second.sketch is None or first.shape != second.shape:
        return gap
    return max(gap, estimate_distance(first.sketch, second.sketch))
