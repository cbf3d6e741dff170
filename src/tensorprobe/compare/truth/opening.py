"""Looks inside the calls at which two runs part: where one run calls attention and the other writes it out, what both
compute on the way is held against each other, too.

Only these calls are taken apart, one level at a time, and only while what is found is a call against one that does
something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.forward_difference import ForwardExplainer, Starts
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import TrueCall, TrueStep

_MAX_ROUNDS = 16


class Opener(Protocol):
    """Takes calls of one run apart."""

    def open(self, step: TrueStep, name: str) -> TrueStep | None: ...


class Opening:
    """Takes the calls apart at which two runs part, until they are found to part at two calls of a kind."""

    def __init__(
        self, counterparts: Counterparts, starts: Starts, arguments: Arguments, inside: Mapping[str, Opener]
    ) -> None:
        self._counterparts, self._starts = counterparts, starts
        self._arguments, self._inside = arguments, inside
        self._rounds: list[Difference] = []
        """The first difference of each time that the steps were looked at."""
        self.beginnings: dict[str, list[TrueCall]] = {}
        """Where what differs begins, in each run."""

    def explain(self) -> tuple[list[Difference], Counterparts]:
        for _ in range(_MAX_ROUNDS):
            explainer = ForwardExplainer(self._counterparts, self._counterparts, self._arguments)
            differences = explainer.explain(self._starts)
            self.beginnings = {side: explainer.beginnings(side) for side in self._counterparts.steps}
            self._rounds += differences[:1]
            is_found = bool(differences) and differences[0].is_found
            if is_found and not differences[0].is_inside:
                break
            if differences and self._is_exchanged(differences[0]):
                break
            if not self._open(explainer.find_unlike(differences), only_spells=is_found):
                break
        return differences, self._counterparts

    def _is_exchanged(self, one: Difference) -> bool:
        """Does one call stand in the place of another: are both given the same, and their results to calls of a kind?
        Then it is another function, and not one that is written out."""
        if one.reference is None or one.candidate is None or one.is_inside:
            return False
        taken, users = [], []
        for side, call in (("reference", one.reference), ("candidate", one.candidate)):
            step = self._counterparts.steps[side]
            taken.append({number for number in call.inputs.values() if step.values[number].is_floating})
            users.append({word_of(user) for number in call.outputs.values() for user in step.users.get(number, [])})
        values = self._counterparts.steps["candidate"].values
        partners = [{one.number for one in self._counterparts.of("candidate", values[number])} for number in taken[1]]
        is_given_the_same = len(taken[0]) == len(taken[1]) and all(found & taken[0] for found in partners)
        return bool(users[0]) and users[0] == users[1] and is_given_the_same

    def name(self, differences: Sequence[Difference]) -> list[Difference]:
        """The first one by calls of the program, where it was seen at these before they were taken apart, too: that a
        softmax differs says more than that a maximum in it does."""
        last = differences[0] if differences else None
        earlier = [one for one in self._rounds if last and one.is_inside and _is_in_same_calls(one, last)]
        if last is None or not earlier:
            return list(differences)
        if not last.is_found:
            return [earlier[0], *differences[1:]]
        recorded = [
            next((call for one in earlier if (call := one.call(side)) is not None and call.inside is None), None)
            for side in ("reference", "candidate")
        ]
        calls = recorded[0] or last.reference, recorded[1] or last.candidate
        return [replace(last, reference=calls[0], candidate=calls[1]), *differences[1:]]

    def _open(self, names: Mapping[str, Sequence[str]], *, only_spells: bool) -> bool:
        """Take these apart, on the side that has more inside. `only_spells`: look only what they are called there."""
        steps = {side: self._open_all(side, names[side]) for side in self._counterparts.steps}
        sizes = {side: len(step.calls) for side, step in steps.items()}
        gains = {side: size - len(self._counterparts.steps[side].calls) for side, size in sizes.items()}
        largest = 0 if only_spells else max(gains.values())
        chosen = {side: steps[side] for side, gain in gains.items() if gain in (0, largest)}
        steps = {**self._counterparts.steps, **chosen}
        if steps == self._counterparts.steps:
            return False
        self._counterparts = Counterparts(steps["reference"], steps["candidate"], self._counterparts)
        return True

    def _open_all(self, side: str, names: Sequence[str]) -> TrueStep:
        step = self._counterparts.steps[side]
        for name in names:
            step = self._inside[side].open(step, name) or step
        return step


def _is_in_same_calls(first: Difference, second: Difference) -> bool:
    pairs = (first.reference, second.reference), (first.candidate, second.candidate)
    names = [[(call.inside or call.name) if call is not None else None for call in pair] for pair in pairs]
    return all(one == other for one, other in names)
