"""Where two steps with the same forward begin to differ in their gradients.

Every value of the candidate that the reference has too is asked for its gradient, in the order of execution. Of those
that differ, one after which all gradients agree is where the difference arises: some call takes this value and gives
another gradient back, or none. Calls that only one run has, and values inside them, need no partner for this.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial

import numpy as np

from tensorprobe.compare.truth.call_likeness import unlikeness
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.gradient_stop import find_exit, find_going_on, find_stop, leads_to_loss
from tensorprobe.compare.truth.observable import GradientPair, arrange
from tensorprobe.compare.truth.value_index import ZERO, Counterparts, other_side
from tensorprobe.model.count import count_noun
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue

_SLACK = 10.0
"""Gradients of single values are sums of few numbers, and less exact than those of parameters."""


@dataclass(frozen=True)
class _Share:
    """What one call gives back to one of its operands."""

    call: TrueCall
    slot: str
    gradient: Array


class GradientExplainer:
    """Finds the calls where gradients part."""

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        self._steps = counterparts.steps
        gradients = [step.gradient_of(value) for step in self._steps.values() for value in step.values]
        self._floor = ZERO * max((float(np.linalg.norm(one)) for one in gradients if one is not None), default=0.0)

    def explain(self, pairs: Sequence[GradientPair]) -> list[Difference]:
        """The differences, the one that comes first in backward. `pairs`: the gradients of parameters."""
        frozen = [one for pair in pairs if not pair.is_equal for one in self._describe_frozen(pair)]
        if frozen:
            return frozen
        step = self._steps["candidate"]
        differing = self._find_differing(step)
        found: dict[tuple[TrueCall | None, TrueCall | None], Difference] = {}
        earlier = step.find_before({value.number for value in differing})
        last = [value for value in differing if value.number not in earlier]
        for value in sorted(last, key=lambda one: -_position(one, step)):
            for one in self._describe(value):
                found.setdefault((one.reference, one.candidate), one)
        lone = [] if found else [pair for pair in pairs if not pair.is_equal]
        lone.sort(key=lambda pair: -self._find_last_use(pair.candidate))  # what lies before it differs for that reason
        ordered = sorted(found.values(), key=_rank)
        return [*ordered, *(one for pair in lone for one in self._describe_parameter(pair))]

    def _find_last_use(self, leaf: TrueValue) -> int:
        """By a call of the program."""
        users = self._steps["candidate"].users.get(leaf.number, ())
        return max((call.position for call in users if call.caller is None and call.departing), default=-1)

    def _describe_frozen(self, pair: GradientPair) -> Iterator[Difference]:
        """A parameter that only one run has set to be trained."""
        leaves = {"reference": pair.reference, "candidate": pair.candidate}
        trained = [side for side, leaf in leaves.items() if leaf.is_followed]
        if len(trained) != 1 or not all(leaf.is_leaf for leaf in leaves.values()):
            return
        frozen = leaves[other_side(trained[0])]
        if frozen.gradient is not None or (frozen.parameter is not None and not frozen.is_frozen):
            return
        users = {side: next(iter(self._steps[side].users.get(leaf.number, ())), None) for side, leaf in leaves.items()}
        side = other_side(trained[0])
        is_named = leaves[side].parameter is not None
        how = f"is frozen in the {side}" if is_named else f"the {side} uses its values detached (`.data`, `detach`)"
        because = f"{pair.name} gets a gradient in the {trained[0]}, but {how}"
        yield Difference("entered", users["reference"], users["candidate"], because, is_backward=True, is_clear=True)

    def _describe_parameter(self, pair: GradientPair) -> list[Difference]:
        """Where no other value shows it: a parameter that only one run uses twice, or one that is joined, of which each
        run computes its own."""
        leaves = {"reference": pair.reference, "candidate": pair.candidate}
        untied = [one for side, leaf in leaves.items() for one in self._find_untied(leaf, side)]
        if untied:
            return untied
        users = {side: next(iter(self._steps[side].users.get(leaf.number, ())), None) for side, leaf in leaves.items()}
        because = f"the gradient of {pair.name} differs, but the gradients of everything computed from it are the same"
        return [Difference("source", users["reference"], users["candidate"], because, is_backward=True)]

    def _find_untied(self, leaf: TrueValue, side: str) -> Iterator[Difference]:
        """Calls of one run that take the parameter that others take too, where the other run has one for each."""
        other = other_side(side)
        partners = [one for one in self._counterparts.of(side, leaf) if one.is_trained]
        first: TrueValue | None = None
        for call in self._steps[side].users.get(leaf.number, ()):
            same = self._find_same_call(call, side)
            taken = next((one for one in partners if same is not None and one.number in same.inputs.values()), None)
            first = first or taken
            if taken is None or first is None or taken.number == first.number:
                continue
            calls, names = {side: call, other: same}, {side: leaf.parameter, other: taken.parameter}
            because = f"it uses {names['candidate']}, and in the reference {names['reference']}: only the {side} ties"
            because += " the two, so their gradients differ"
            yield Difference("source", calls["reference"], calls["candidate"], because, is_backward=True)

    # -- which values --------------------------------------------------------------------------------------------------

    def _find_differing(self, step: TrueStep) -> list[TrueValue]:
        """The values with another gradient that shows in that of a leaf. Where all gradients that are computed from it
        agree again, it is the same value used for something else: one run computes twice what the other uses twice. Of
        zeros nobody knows which are the same."""
        exists, is_plain = self._counterparts.exists, self._counterparts.is_plain
        told = [value for value in step.values if value.is_floating and not is_plain("candidate", value)]
        shared = [value for value in told if exists("candidate", value)]
        agreeing = {value.number for value in shared if self._agrees(value)}
        shown, leading = set[int](), set[int]()
        for value in sorted(step.values, key=lambda one: _position(one, step)):
            maker = step.maker(value)
            if maker is None or not leading.isdisjoint(_find_given_back(maker)):
                shown.add(value.number)
                leading |= {value.number} - agreeing
        found = [value for value in shared if self._differs(value)]
        return [value for value in found if value.number in shown] or found

    def _differs(self, value: TrueValue) -> bool:
        """Is its gradient not that of the same value in the reference? One run may compute a value twice that the other
        uses twice, or pass it on as it is: then the gradients of all that was computed add up to the same. Where no
        gradient goes in one run, it may be another value that only has the same numbers; what that does to others is
        seen there."""
        partners = self._counterparts.of("candidate", value)
        origins = self._origins([value, *self._twins(value)], "candidate")
        if origins and value not in origins:
            return False
        own = self._add_up(origins, value, "candidate")
        others = self._add_up(self._origins(partners, "reference"), value, "reference")
        if own is not None and others is not None:
            return not self._is_same(own, others, value)
        known = own if own is not None else others
        is_meant = value.is_trained and all(one.is_trained for one in partners)
        is_meant = is_meant or self._is_on_the_way(value, partners)
        return is_meant and known is not None and not self._is_zero(known)

    def _is_on_the_way(self, value: TrueValue, partners: Sequence[TrueValue]) -> bool:
        """Could gradients go through it in both runs, from a loss that is computed from it? What has the same numbers
        and is not followed is none of them. None goes through the calls inside a Function that has a backward of its
        own."""
        if any(step.coverage.own_backwards for step in self._steps.values()):
            return False
        sides = {"candidate": [value, *self._twins(value)], "reference": partners}
        followed = {side: [one for one in some if one.is_followed] for side, some in sides.items()}
        told = [leads_to_loss(one, self._steps[side]) for side, some in followed.items() for one in some]
        return value.is_followed and [len(some) for some in followed.values()] == [1, 1] and all(told)

    def _agrees(self, value: TrueValue) -> bool:
        """Is its gradient known, and that of the same value in the reference?"""
        own = self._steps["candidate"].gradient_of(value)
        partners = self._counterparts.of("candidate", value)
        others = (self._arranged(one, value, self._steps["reference"]) for one in partners)
        return own is not None and any(one is not None and self._is_same(own, one, value) for one in others)

    def _add_up(self, values: Sequence[TrueValue], target: TrueValue, side: str) -> Array | None:
        step = self._steps[side]
        found = [gradient for one in values if (gradient := self._arranged(one, target, step)) is not None]
        return np.sum(found, axis=0) if found else None

    def _origins(self, values: Sequence[TrueValue], side: str) -> list[TrueValue]:
        """Of values with one content those that a gradient reaches and that pass it on to none of the others."""
        step, numbers = self._steps[side], {one.number for one in values}
        reached = [one for one in values if step.gradient_of(one) is not None]
        earliest = min((_position(one, step) for one in reached), default=0)
        return [one for one in reached if len(values) == 1 or not self._is_made_of(one, numbers, earliest, step)]

    def _is_made_of(self, value: TrueValue, numbers: Set[int], earliest: int, step: TrueStep) -> bool:
        waiting, seen = [value], {value.number}
        while waiting:
            maker = step.maker(waiting.pop())
            if maker is None or maker.position < earliest:
                continue
            for number in _find_given_back(maker):
                if number in seen:
                    continue
                if number in numbers:
                    return True
                seen.add(number)
                waiting.append(step.values[number])
        return False

    def _twins(self, value: TrueValue) -> list[TrueValue]:
        """The other values of the candidate with this content."""
        found = {
            twin.number: twin
            for partner in self._counterparts.of("candidate", value)
            for twin in self._counterparts.of("reference", partner)
        }
        return [twin for number, twin in found.items() if number != value.number]

    # -- which calls ---------------------------------------------------------------------------------------------------

    def _describe(self, value: TrueValue) -> Iterator[Difference]:
        partners = self._counterparts.of("candidate", value)
        own = list(self._shares([value, *self._twins(value)], value, "candidate"))
        others = list(self._shares(partners, value, "reference"))
        for share in list(own):
            same = next((one for one in others if self._is_same(share.gradient, one.gradient, value)), None)
            if same is not None:
                own.remove(share)
                others.remove(same)
        if own and others:
            for share in own:
                partner = self._find_same_call(share.call, "candidate") or others[0].call
                if others[0].call.prefix == "Autograd":  # whose backward is its own: it stands for the calls inside
                    partner = others[0].call
                because = "it receives the same gradient, but returns a different one"
                yield Difference("source", partner, share.call, because, is_backward=True)
        else:
            yield from self._describe_lone(own or others, "candidate" if own else "reference")

    def _describe_lone(self, shares: Sequence[_Share], side: str) -> Iterator[Difference]:
        """Gradients that go in one run only."""
        stops: set[TrueCall | None] = set()
        for share in self._follow(shares, side):
            stopped = self._describe_stop(share, side)
            if stopped is not None:
                stop = stopped.call(other_side(side))
                yield from [] if stop in stops else [stopped]
                stops.add(stop)
                continue
            calls = {side: share.call, other_side(side): self._find_same_call(share.call, side)}
            because = f"it passes a gradient to {share.slot}, which gets none in the {other_side(side)}"
            if side == "reference" and calls["candidate"] is not None:
                because = f"it passes no gradient to {share.slot}, which gets one in the reference"
            yield Difference("source", calls["reference"], calls["candidate"], because, is_backward=True)

    def _describe_stop(self, share: _Share, side: str) -> Difference | None:
        """A gradient that goes in one run only: the call of the other run that stops it, if there is one."""
        given = self._steps[side].values[share.call.inputs[share.slot]]
        stop = find_stop(self._counterparts, given, side)
        if stop is None:
            return None
        going_on = find_going_on(self._counterparts, given, side, stop) or share.call
        calls = {other_side(side): stop, side: going_on}
        ends = {side: [given], other_side(side): self._counterparts.of(side, given)}
        exits = {name: find_exit(self._steps[name], call, ends[name]) for name, call in calls.items()}
        calls = {name: exits[name] or call for name, call in calls.items()} if all(exits.values()) else calls
        because = "it lets a gradient through, but the reference stops it there"
        if side == "reference":
            because = "it lets no gradient through, but the reference does"
        return Difference("source", calls["reference"], calls["candidate"], because, is_backward=True, is_clear=True)

    def _follow(self, shares: Sequence[_Share], side: str) -> Iterator[_Share]:
        """Gradients that go in one run only: follow them from value to value, on to where one arrives in both."""
        step, waiting, seen = self._steps[side], list(shares), set[str]()
        while waiting:
            share = waiting.pop(0)
            if share.call.name in seen:
                continue
            seen.add(share.call.name)
            results = [step.values[number] for number in share.call.outputs.values()]
            lone = [value for value in results if self._goes_on_here(value, side)]
            further = [one for value in lone for one in self._shares([value], value, side)]
            waiting += further
            if not further:
                yield share

    def _goes_on_here(self, value: TrueValue, side: str) -> bool:
        """The same on the way: a value that the other run has not, because one call of it computes all this at once,
        says nothing; what comes behind it does."""
        step, waiting, seen = self._steps[side], [value], {value.number}
        while waiting:
            one = waiting.pop()
            if self._goes_here_only(one, side):
                return True
            if self._counterparts.exists(side, one):
                continue
            for share in self._shares([one], one, side):
                further = [number for number in share.call.outputs.values() if number not in seen]
                seen.update(further)
                waiting += [step.values[number] for number in further]
        return False

    def _goes_here_only(self, value: TrueValue, side: str) -> bool:
        """Does a gradient arrive at it, and at none of those of the same content in the other run?"""
        other = other_side(side)
        partners = self._counterparts.of(side, value)
        gradients = [self._steps[other].gradient_of(one) for one in partners]
        own = self._steps[side].gradient_of(value)
        return bool(partners) and own is not None and all(one is None or self._is_zero(one) for one in gradients)

    def _shares(self, values: Sequence[TrueValue], target: TrueValue, side: str) -> Iterator[_Share]:
        """What is given back to these values, by calls that do not only make one of them of another."""
        step = self._steps[side]
        shown = [one for value in values for one in (value, *step.find_views(value))]
        numbers = {one.number for one in shown}
        for value in shown:
            for call in step.users.get(value.number, []):
                if not numbers.isdisjoint(call.outputs.values()):
                    continue
                for slot, number in call.inputs.items():
                    gradient = call.departing.get(slot) if number == value.number else None
                    if gradient is None or self._is_zero(gradient):
                        continue
                    arranged = arrange(value.array, target.array, gradient, self._counterparts.tolerance)
                    yield _Share(call, slot, gradient if arranged is None else arranged)

    def _find_same_call(self, call: TrueCall, side: str) -> TrueCall | None:
        """The call of the other run that makes the same value, rather by the same function, in the same place."""
        other = next(step for name, step in self._steps.items() if name != side)
        for number in call.outputs.values():
            value = self._steps[side].values[number]
            makers = [other.maker(one) for one in self._counterparts.of(side, value)]
            same = [maker for maker in makers if maker is not None]
            if same:
                return min(same, key=partial(unlikeness, call))
        return None

    # -- numbers -------------------------------------------------------------------------------------------------------

    def _arranged(self, value: TrueValue, target: TrueValue, step: TrueStep) -> Array | None:
        gradient = step.gradient_of(value)
        if gradient is None:
            return None
        arranged = arrange(value.array, target.array, gradient, self._counterparts.tolerance)
        return None if arranged is None else arranged.reshape(target.array.shape)

    def _is_zero(self, gradient: Array) -> bool:
        return float(np.linalg.norm(gradient)) <= self._floor

    def _is_same(self, first: Array, second: Array, value: TrueValue) -> bool:
        """Gradients of a value of the candidate, or shares of them, and of the reference."""
        if first.size != second.size:
            return False
        with np.errstate(invalid="ignore", over="ignore"):
            scale = max(float(np.linalg.norm(first)), float(np.linalg.norm(second)))
            difference = float(np.linalg.norm(np.nan_to_num(first.reshape(-1) - second.reshape(-1))))
        tolerance = self._counterparts.gradient_tolerance(self._counterparts.of("candidate", value), [value])
        return difference <= max(_SLACK * tolerance * scale, self._floor)


def _rank(one: Difference) -> tuple[bool, bool, int]:
    """First what says why a gradient is missing, from the end: what lies before it may be missing for the same reason.
    Last what one run alone does, which may be its way to do the same."""
    position = one.candidate.position if one.is_clear and one.candidate is not None else 0
    return not one.is_clear, one.reference is None or one.candidate is None, -position


def _find_given_back(call: TrueCall) -> list[int]:
    """What it gives a gradient to; all that it takes, where that was not recorded."""
    return [number for slot, number in call.inputs.items() if slot in (call.departing or call.inputs)]


def _position(value: TrueValue, step: TrueStep) -> int:
    maker = step.maker(value)
    return -1 if maker is None else maker.position


def describe_cleared(pairs: Sequence[GradientPair], steps: Mapping[str, TrueStep]) -> Difference | None:
    """Has one run cleared a part of the gradients that differ, before anybody took it?"""
    differing = [pair for pair in pairs if not pair.is_equal]
    for side, step in steps.items():
        lost = [pair for pair in differing if _is_cleared_in(pair, side) and not _is_cleared_in(pair, other_side(side))]
        call = step.maker(step.roots[-1]) if lost and step.roots else None
        if call is not None:
            others = f" and {count_noun(len(lost) - 1, 'other')}" if lost[1:] else ""
            because = (
                f"the gradient of {lost[0].name}{others}, left by the previous backward pass, was cleared before it "
                "was used"
            )
            first, second = (call, None) if side == "reference" else (None, call)
            return Difference("source", first, second, because, is_backward=True, is_clear=True)
    return None


def _is_cleared_in(pair: GradientPair, side: str) -> bool:
    return (pair.reference if side == "reference" else pair.candidate).is_cleared
