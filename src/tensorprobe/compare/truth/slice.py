"""The calls that lead to a difference: from what differs back to where everything that goes in exists in the other run.

There the difference arises. A value without a counterpart that is used elsewhere with no effect (a mask that was built
in another way) does not lead anywhere: it is passed over.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Set
from dataclasses import dataclass, field

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import TrueCall, TrueValue

SELECTIONS = frozenset(
    {
        *("getitem", "select", "narrow", "index_select", "gather", "take", "take_along_dim", "masked_select", "slice"),
        *("topk", "max", "min", "amax", "amin", "sort", "kthvalue", "max_pool1d", "max_pool2d", "max_pool3d"),
        *("adaptive_max_pool1d", "adaptive_max_pool2d", "adaptive_max_pool3d", "strided_slice", "gatherd", "gathernd"),
    }
)
"""What they return may be right although what goes in is not: they leave a part of it out."""

SHAPED = frozenset(
    {
        *("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like", "randint_like"),
        *("new_zeros", "new_ones", "new_full", "new_empty"),
    }
)
"""What they return depends on the shape of what goes in first, and not on its numbers."""
_FIRST = "input.0"


@dataclass
class Slice:
    """What leads to a difference, in one run."""

    calls: set[str] = field(default_factory=set)
    beginnings: list[TrueCall] = field(default_factory=list)
    """The calls whose result does not exist in the other run, although all that goes in does, but for parameters and
    tables that the other run does not use, and for what says nothing, as a mask; as they ran."""
    leaves: list[tuple[TrueCall, TrueValue]] = field(default_factory=list)
    """Leaves that the other run has not, each with the first call that takes it."""


class Slicer:
    """Follows differences back in one run."""

    def __init__(self, side: str, counterparts: Counterparts, exists: Callable[[str, TrueValue], bool]) -> None:
        self._side = side
        self._exists = exists
        self._step = counterparts.steps[side]
        self._counterparts = counterparts
        self._harmless: Set[int] = frozenset()

    def exists(self, value: TrueValue) -> bool:
        return self._exists(self._side, value)

    def follow(self, starts: Iterable[TrueValue]) -> Slice:
        """What leads to these values, which differ."""
        found, differing = Slice(), list(starts)
        self._harmless = self._find_harmless({value.number for value in differing})
        waiting = [call for value in differing if (call := self._step.maker(value)) is not None]
        while waiting:
            call = waiting.pop()
            if call.name in found.calls:
                continue
            found.calls.add(call.name)
            before = self._lacking(call)
            makers = [maker for value in before if (maker := self._find_maker(value)) is not None and maker is not call]
            lacking_leaves = [value for value in before if value.is_leaf]
            found.leaves += [(call, value) for value in lacking_leaves]
            waiting += makers
            if not makers or self._takes_up(call, before):
                found.beginnings.append(call)
        found.beginnings.sort(key=lambda call: call.position)
        found.leaves.sort(key=lambda pair: pair[0].position)
        return found

    def begins(self, call: TrueCall) -> bool:
        """Does the other run have all that goes into it, but for what says nothing?"""
        return all(map(self._is_plain, self._lacking(call)))

    def takes_up_other(self, call: TrueCall) -> bool:
        """Is it one that only what says nothing leads to?"""
        return self._takes_up(call, [value for value in self._lacking(call) if not value.is_leaf])

    def _takes_up(self, call: TrueCall, lacking: Collection[TrueValue]) -> bool:
        """Does it put what says nothing, and the other run has not, together with what says something?"""
        if not lacking or not all(self._is_plain(value) for value in lacking if not value.is_leaf):
            return False
        given, made = (
            [self._step.values[number] for number in slots.values()] for slots in (call.inputs, call.outputs)
        )
        return any(map(self._is_telling, given)) and not all(map(self._is_plain, made))

    def _is_plain(self, value: TrueValue) -> bool:
        return self._counterparts.is_plain(self._side, value)

    def _lacking(self, call: TrueCall) -> list[TrueValue]:
        is_shaped = word_of(call) in SHAPED
        numbers = [number for slot, number in call.inputs.items() if not (is_shaped and slot == _FIRST)]
        values = [self._step.values[number] for number in dict.fromkeys(numbers)]
        return [value for value in values if value.number not in self._harmless and not self.exists(value)]

    def _find_harmless(self, differing: Set[int]) -> Set[int]:
        """Values without a counterpart that some call, on the way to what differs, makes a value of that has one, and
        leaves nothing out. A result that passes no gradient on to them depends on their shapes only."""
        harmless: set[int] = set()
        leading = self._step.find_before(differing)
        for call in sorted(self._step.calls.values(), key=lambda call: -call.position):
            if word_of(call) in SELECTIONS or leading.isdisjoint(call.outputs.values()):
                continue
            outputs = [self._step.values[number] for number in call.outputs.values()]
            is_told = any(self._is_telling(value) or value.number in harmless for value in outputs)
            if is_told and all(value.number in harmless or self.exists(value) for value in outputs):
                is_followed = any(value.is_followed for value in outputs)
                values = [self._step.values[number] for number in call.inputs.values()]
                values = [value for value in values if is_followed or not value.is_followed]
                harmless.update(value.number for value in values if not self.exists(value))
        return harmless

    def _find_maker(self, value: TrueValue) -> TrueCall | None:
        """The call that makes it, and not one whose results the other run has, if no recorded call made this view of
        them, such as `.imag`: it is by what is taken that the runs differ."""
        maker = self._step.maker(value)
        if maker is None or value.number in maker.outputs.values():
            return maker
        made = (self._step.values[number] for number in maker.outputs.values())
        return None if all(map(self.exists, made)) else maker

    def _is_telling(self, value: TrueValue) -> bool:
        return value.is_floating and not self._is_plain(value) and self.exists(value)
