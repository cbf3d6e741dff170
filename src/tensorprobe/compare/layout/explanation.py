"""What is the matter with a call of some ranks, of which all that goes in is in the reference and what comes out is
not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.layout.descent import CallPair, Descent, Given
from tensorprobe.compare.layout.difference import Beginning, Tracer
from tensorprobe.compare.layout.observable import list_ranks
from tensorprobe.compare.layout.part import Part, locate
from tensorprobe.compare.layout.pool import Known, Ranks, Steps
from tensorprobe.compare.layout.relation import Relation
from tensorprobe.compare.layout.way import Way
from tensorprobe.compare.result import VerdictKind
from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.replay.communication import Communication
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue

_ADDING = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True)
class Explanation:
    """One difference, in words."""

    kind: VerdictKind
    call: TrueCall | None
    """Of the candidate."""
    ranks: Ranks
    because: str
    reference: TrueCall | None = None
    reference_rank: int = 0
    is_clear: bool = True
    """Does it say more than that something differs?"""


class Explainer:
    """Looks at the calls where the candidate begins to differ."""

    def __init__(self, reference: Steps, candidate: Steps, tracer: Tracer, tolerance: float) -> None:
        self._reference = reference
        self._candidate = candidate
        self._tracer = tracer
        self._tolerance = tolerance
        self._way = Way(candidate, tracer)

    def explain(self, beginning: Beginning) -> Explanation:
        call, rank = beginning.call, beginning.rank
        drawn = self._explain_drawn(beginning)
        if drawn is not None:
            return drawn
        given = [(slot, value, self._tracer.relation(rank, value)) for slot, value in self._own_inputs(rank, call)]
        partner, partner_rank = self._find_partner(call, [found for *_, found in given if found is not None])
        chosen = self._choose(beginning, given)
        if chosen is None and partner is not None and word_of(partner) == word_of(call):
            earlier = self._explain_earlier(beginning, CallPair(call, partner), partner_rank)
            if earlier is not None:
                return earlier
        if chosen is None and partner is not None and word_of(partner) != word_of(call):
            on_the_way = self._explain_way(beginning, partner, partner_rank)
            if on_the_way is not None:
                return on_the_way
        exchanged = self._find_exchanged(call, given) if chosen is None else None
        chosen = ("entered", exchanged) if exchanged is not None else chosen
        kind, because = chosen or ("source", self._describe_otherwise(call, partner))
        return Explanation(kind, call, beginning.ranks, because, partner, partner_rank, chosen is not None)

    def _explain_earlier(self, beginning: Beginning, pair: CallPair, partner_rank: int) -> Explanation | None:
        """By a call before it, which returned something that the reference has elsewhere: a number times 1."""
        descent = Descent(self._candidate[beginning.rank], self._reference[partner_rank], self._tolerance)
        found, given = descent.find_departure(pair)
        twisted = self._find_twisted(given)
        if twisted is None:
            return None
        ranks = tuple(rank for rank in beginning.ranks if found.call.name in self._candidate[rank].step.calls)
        return Explanation("entered", found.call, ranks, twisted, found.partner, partner_rank)

    def _explain_drawn(self, beginning: Beginning) -> Explanation | None:
        """By a call that drew other numbers, of which only a mask is left: that by itself could be anywhere."""
        found = {rank: self._find_drawn(rank, beginning.call) for rank in beginning.ranks}
        call = found[beginning.rank]
        if call is None:
            return None
        ranks = tuple(rank for rank, one in found.items() if one is not None and one.name == call.name)
        return Explanation("random", call, ranks, self._describe_drawn(call, ranks))

    def _find_drawn(self, rank: int, call: TrueCall) -> TrueCall | None:
        step = self._candidate[rank].step
        own = step.calls.get(call.name)
        waiting = [step.values[number] for number in own.inputs.values()] if own is not None else []
        seen = set[int]()
        while waiting:
            value = waiting.pop()
            maker = step.maker(value)
            if value.number in seen or maker is None:
                continue
            seen.add(value.number)
            if maker.is_random and self._tracer.relation(rank, value) is None:
                return maker
            if self._tracer.is_plain(rank, value):
                waiting += [step.values[number] for number in maker.inputs.values()]
        return None

    def _describe_drawn(self, call: TrueCall, ranks: Ranks) -> str:
        others = self._agreeing_ranks(call, ranks)
        peers = f", and {list_ranks(others)} the same as the reference" if others else ""
        return f"it drew different random numbers{peers}"

    def _explain_way(self, beginning: Beginning, partner: TrueCall, partner_rank: int) -> Explanation | None:
        """By what the calls from here to the loss are given, where the reference gets there by others."""
        rank = beginning.rank
        wrong = self._way.find_wrong_place(rank)
        if wrong is not None:
            first = min(wrong.numbers)
            number, place = wrong.numbers[first]
            because = (
                f"its {wrong.slot} is {number} on rank {first}, whose part of {self._describe_known(wrong.known)} of "
                f"the reference {wrong.bound} at {place}"
            )
            return Explanation("entered", wrong.call, tuple(sorted(wrong.numbers)), because, partner, partner_rank)
        cut = [one for one in self._way.find_taken(rank) if not one.relation.part.is_whole]
        for number, one in enumerate(cut):
            for other in cut[number + 1 :]:
                if self._is_twisted((one.value, one.relation), (other.value, other.relation)):
                    because = (
                        f"its {one.slot} is {one.relation.part.describe()} of "
                        f"{self._describe_known(one.relation.known)} of the reference, but further on {other.slot} of "
                        f"{other.call.name} is {other.relation.part.describe()} of "
                        f"{self._describe_known(other.relation.known)}"
                    )
                    return Explanation("entered", one.call, beginning.ranks, because, partner, partner_rank)
        return None

    def _choose(self, beginning: Beginning, given: list[Given]) -> tuple[VerdictKind, str] | None:
        call, rank = beginning.call, beginning.rank
        if call.is_random or "dropout" in word_of(call):
            return "random", self._describe_drawn(call, beginning.ranks)
        communication = self._candidate[rank].communications.get(call.name)
        if communication is not None:
            return "source", self._describe_collective(rank, call, communication)
        shares = ((slot, found) for slot, _, found in given if found is not None and found.is_share)
        for slot, relation in shares:
            what = self._describe_known(relation.known)
            return "source", (
                f"its {slot} is one of {len(relation.ranks)} parts whose sum over {list_ranks(relation.ranks)} is "
                f"{what} of the reference, but nothing has added them up"
            )
        reduced = self._find_reduced(given)
        if reduced is not None:
            return "source", reduced
        twisted = self._find_twisted(given)
        return ("entered", twisted) if twisted is not None else None

    def _find_reduced(self, given: list[Given]) -> str | None:
        """An input that the reference adds up over its ranks, and gives to nothing else."""
        for slot, _, relation in given:
            if relation is None or relation.known.call is None or len(relation.known.ranks) > 1:
                continue
            (rank,) = relation.known.ranks
            one = self._reference[rank]
            users = [one.communications.get(user.name) for user in self._iter_takers(one.step, relation.known.array)]
            adding = [found for found in users if found is not None and found.kind in _ADDING]
            if adding and len(adding) == len(users):
                return (
                    f"its {slot} is {self._describe_known(relation.known)} of the reference, which adds it up over "
                    f"{list_ranks(adding[0].members(rank))} ({adding[0].operation.name}), but here nothing has"
                )
        return None

    def _iter_takers(self, step: TrueStep, array: Array) -> Iterator[TrueCall]:
        """The calls that make something else of it than another view."""
        same = {one.number for one in step.values if one.array is array or is_same(one.array, array, self._tolerance)}
        for number in same:
            yield from (user for user in step.users.get(number, ()) if not same.issuperset(user.outputs.values()))

    def _describe_otherwise(self, call: TrueCall, partner: TrueCall | None) -> str:
        if partner is None or word_of(partner) == word_of(call):
            return "its inputs are parts of the reference's values, but its result is not"
        return (
            f"from here on the calls are not the same as {partner.name} and what follows in the reference, and their "
            "result differs"
        )

    def _find_exchanged(self, call: TrueCall, given: list[Given]) -> str | None:
        """An input that the reference gives to another call than the others."""
        known = {slot: found.known for slot, _, found in given if found is not None}
        found: list[tuple[int, str]] = []
        for one in self._reference.values():
            for other in one.step.calls.values():
                if word_of(other) != word_of(call) or len(known) < 2:
                    continue
                taken = {slot: one.step.values[number] for slot, number in other.inputs.items() if slot in known}
                differing = [slot for slot, value in taken.items() if value.array is not known[slot].array]
                shared = [slot for slot in taken if slot not in differing]
                if len(differing) == 1 and shared and not self._holds(call, differing[0], taken[differing[0]]):
                    slot = differing[0]
                    words = (
                        f"its {shared[0]} is a part of {self._describe_known(known[shared[0]])} of the reference, "
                        f"but there {other.name} takes it together with a different {slot} (here a part of "
                        f"{self._describe_known(known[slot])})"
                    )
                    found.append((len(one.step.users.get(taken[shared[0]].number, ())), words))
        return min(found, key=lambda one: one[0])[1] if found else None  # what few calls take tells most

    def _holds(self, call: TrueCall, slot: str, value: TrueValue) -> bool:
        """Is it given a part of this value all the same, as one of several that are equal?"""
        for one in self._candidate.values():
            own = one.step.calls.get(call.name)
            given = one.step.values[own.inputs[slot]] if own is not None and slot in own.inputs else None
            if given is not None and locate(given.array, value.array, self._tolerance) is None:
                return False
        return True

    def _own_inputs(self, rank: int, call: TrueCall) -> Iterator[tuple[str, TrueValue]]:
        return ((slot, self._candidate[rank].step.values[number]) for slot, number in call.inputs.items())

    def _agreeing_ranks(self, call: TrueCall, ranks: Ranks) -> list[int]:
        found = []
        for rank, one in self._candidate.items():
            own = one.step.calls.get(call.name)
            if rank not in ranks and own is not None:
                outputs = [one.step.values[number] for number in own.outputs.values()]
                if outputs and all(self._tracer.exists(rank, value) for value in outputs):
                    found.append(rank)
        return found

    def _describe_collective(self, rank: int, call: TrueCall, communication: Communication) -> str:
        members = communication.members(rank)
        for slot, value in self._own_inputs(rank, call):
            relation = self._tracer.relation(rank, value)
            if relation is not None and relation.is_share and set(members) < set(relation.ranks):
                missing = [one for one in relation.ranks if one not in members]
                return (
                    f"it adds up {len(members)} of the {len(relation.ranks)} parts of "
                    f"{self._describe_known(relation.known)} of the reference: those of {list_ranks(missing)} are "
                    f"left out ({slot})"
                )
            if relation is not None and communication.kind == "all_reduce" and not relation.is_share:
                what = "a part of" if not relation.part.is_whole else "all of"
                return (
                    f"its {slot} is {what} {self._describe_known(relation.known)} of the reference on each of "
                    f"{list_ranks(members)}: there is nothing to add up"
                )
        return f"the inputs of {list_ranks(members)} occur in the reference, but the result does not"

    def _find_twisted(self, given: list[Given]) -> str | None:
        """Two inputs that are different parts of the reference along one dimension."""
        known = [(slot, value, found) for slot, value, found in given if found is not None and not found.part.is_whole]
        for number, (slot, value, relation) in enumerate(known):
            for other_slot, other, other_relation in known[number + 1 :]:
                if self._is_twisted((value, relation), (other, other_relation)):
                    return (
                        f"its {slot} is {relation.part.describe()} of {self._describe_known(relation.known)} of the "
                        f"reference, but its {other_slot} is {other_relation.part.describe()} of "
                        f"{self._describe_known(other_relation.known)}"
                    )
        return None

    def _is_twisted(self, first: tuple[TrueValue, Relation], second: tuple[TrueValue, Relation]) -> bool:
        for dim, places in first[1].part.places:
            whole = first[1].known.array.shape[dim]
            for other_dim, other_places in second[1].part.places:
                is_alike = second[1].known.array.shape[other_dim] == whole and len(places) == len(other_places)
                if not is_alike or np.array_equal(places, other_places):
                    continue
                if not self._fits(first, dim, other_places) and not self._fits(second, other_dim, places):
                    return True
        return False

    def _fits(self, one: tuple[TrueValue, Relation], dim: int, places: np.ndarray) -> bool:  # type: ignore[type-arg]
        """Would it be the same at these places? Rows may be there twice."""
        value, relation = one
        moved = Part(tuple((own, places if own == dim else kept) for own, kept in relation.part.places))
        return is_same(value.array, moved.take(relation.known.array), self._tolerance)

    def _find_partner(self, call: TrueCall, relations: list[Relation]) -> tuple[TrueCall | None, int]:
        """The call of the reference that does the same with what this one takes a part of."""
        taken = {id(one.known.array) for one in relations}
        found: tuple[tuple[bool, ...], TrueCall, int] | None = None
        for rank, one in self._reference.items():
            for other in one.step.calls.values():
                shares = any(id(one.step.values[number].array) in taken for number in other.inputs.values())
                unlike = (
                    *(word_of(other) != word_of(call), other.module_path != call.module_path),
                    *(not shares, other.name != call.name),
                )
                if (shares or not any(unlike[:2])) and (found is None or unlike < found[0]):
                    found = (unlike, other, rank)
        return (found[1], found[2]) if found is not None else (None, 0)

    def _describe_known(self, known: Known) -> str:
        call = known.call or self._find_taker(known)
        return known.name if call is None else f"{known.name} of {call.name}"

    def _find_taker(self, known: Known) -> TrueCall | None:
        """Of data, the first call that takes it: it has no other name."""
        step = self._reference[known.ranks[0]].step
        leaf = next((one for one in step.leaves if one.array is known.array and one.parameter is None), None)
        return next(iter(step.users.get(leaf.number, ())), None) if leaf is not None else None
