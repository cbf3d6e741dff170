"""One call here, several there: fused against written-out operations, compared at the boundary.

Where data flow is known, two groups end where the same consumer takes their results, and reach back over calls without
a partner; they must take in values of the same producers and give results of the same shape, inside the same module.
Without data flow, what stands alone in the same gap between two neighbouring pairs is taken, if the shapes at both ends
agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensorprobe.compare.match.fingerprint import UNKNOWN_VALUE
from tensorprobe.compare.match.group_member import (
    MAX_WRITTEN_OUT,
    closure,
    common_module,
    first_shape,
    free_calls,
    free_runs,
    last_made,
    leaf_shapes,
    result_shape,
    result_shapes,
    result_value,
    sources_of,
)
from tensorprobe.compare.match.module_group import find_end, find_layer_calls
from tensorprobe.compare.match.rule import GROUP
from tensorprobe.compare.match.sequence import longest_rising
from tensorprobe.compare.match.side import Side
from tensorprobe.compare.measure.shape import is_laid_out_alike
from tensorprobe.run.module_tree import ModuleNode

_MAX_CALLS = 64
_FEW_CALLS = 4
_SHARED_INPUTS = 0.5  # of the side that has fewer


@dataclass(slots=True)
class Group:
    """Places in the two lists of calls, in order."""

    reference: set[int]
    candidate: set[int]
    exits: list[tuple[int, int]] = field(default_factory=list)
    is_layer: bool = False
    """All that a pair of innermost modules calls at one time."""
    rule: str = GROUP


class GroupFinder:
    """`partner` and `other_partner` hold the pairs that are made; what is in neither is free."""

    def __init__(
        self,
        reference: Side,
        candidate: Side,
        partner: Mapping[int, int],
        other_partner: Mapping[int, int],
        modules: Mapping[ModuleNode, ModuleNode],
        is_across: bool = False,
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._partner = partner
        self._other_partner = other_partner
        self._modules = modules
        self._matched_candidates = set(modules.values())
        self._free = free_calls(reference, partner)
        self._other_free = free_calls(candidate, other_partner)
        self._is_across = is_across
        """Between two frameworks: layers are groups, and a shape may be split or joined."""
        self._ends: dict[int, int] = {}
        """Calls that stand for each other as producers, because layers end with them."""

    def find(self, known: Sequence[Group] = ()) -> list[Group]:
        """`known`: groups that are found already."""
        for group in known:
            self._free -= group.reference
            self._other_free -= group.candidate
            self._ends.update(group.exits)
        return [*known, *self._find_others()]

    def _find_others(self) -> list[Group]:
        if not self._free or not self._other_free:
            return []
        if self._reference.has_flow and self._candidate.has_flow:
            layers = self._find_layers() if self._is_across else []
            groups = self._merge(
                Group(
                    closure(self._reference, end, self._free),
                    closure(self._candidate, other, self._other_free),
                    [(end, other)],
                )
                for end, other in self._exits(layers)
            )
            groups = [*layers, *(group for group in groups if self._fits(group))]
            parts = [part for group in groups for part in self._split(group)]
            # Where the first calls of a group give its whole result, the rest stands against nothing.
            return [part for part in parts if part.reference and part.candidate]
        return list(self._gap_groups())

    # -- with data flow

    def _find_layers(self) -> list[Group]:
        """What pairs of innermost modules call, where all of it is free and one call of it has the result."""
        found = []
        for calls, others in sorted(find_layer_calls(self._reference, self._candidate, self._modules)):
            if not self._free.issuperset(calls) or not self._other_free.issuperset(others):
                continue
            end, other_end = find_end(self._reference, calls), find_end(self._candidate, others)
            if end is None or other_end is None:
                continue
            group = Group(set(calls), set(others), [(end, other_end)], is_layer=True)
            if self._fits(group):
                found.append(group)
                self._ends[end] = other_end
        for group in found:
            self._free -= group.reference
            self._other_free -= group.candidate
        return found

    def _exits(self, layers: list[Group]) -> Iterator[tuple[int, int]]:
        """Free calls on both sides whose results go to the same place of a pair of calls or layers, or to the end."""
        found: dict[tuple[int, int], None] = {}
        used, other_used = (
            {source for number in side.forward for source in side.sources(number)}
            for side in (self._reference, self._candidate)
        )
        for number, other in self._partner.items():  # those that stand in the same place of it
            both = zip(self._reference.sources(number), self._candidate.sources(other), strict=False)
            found.update(dict.fromkeys(pair for pair in both if pair[0] in self._free and pair[1] in self._other_free))
        for layer in layers:
            found.update(dict.fromkeys(self._layer_sources(layer)))
        last, other_last = max(self._free, default=-1), max(self._other_free, default=-1)
        if last >= 0 and other_last >= 0 and last not in used and other_last not in other_used:
            found[last, other_last] = None
        yield from found

    def _layer_sources(self, layer: Group) -> list[tuple[int, int]]:
        """The free calls that a layer takes from, where it takes from as many on both sides."""
        sources = [one for one in sources_of(self._reference, layer.reference) if one in self._free]
        others = [one for one in sources_of(self._candidate, layer.candidate) if one in self._other_free]
        return list(zip(sources, others, strict=True)) if len(sources) == len(others) else []

    def _merge(self, groups: Iterable[Group]) -> list[Group]:
        """Groups that share a call are one, with several results; each call is the end of one at most."""
        of_call: dict[int, Group] = {}
        of_other_call: dict[int, Group] = {}
        for group in groups:
            touched = [of_call[one] for one in group.reference if one in of_call]
            touched += [of_other_call[one] for one in group.candidate if one in of_other_call]
            for known in {id(one): one for one in touched}.values():
                group.reference |= known.reference
                group.candidate |= known.candidate
                group.exits = [*known.exits, *group.exits]
            of_call.update(dict.fromkeys(group.reference, group))
            of_other_call.update(dict.fromkeys(group.candidate, group))
        merged = list({id(group): group for group in of_call.values()}.values())
        for group in merged:
            group.exits = sorted(set(group.exits))
        return merged

    def _fits(self, group: Group) -> bool:
        sizes = len(group.reference), len(group.candidate)
        if max(sizes) > (MAX_WRITTEN_OUT if min(sizes) <= _FEW_CALLS else _MAX_CALLS):
            return False
        if not all(self._has_same_shape(exit_call, other) for exit_call, other in group.exits):
            return False
        return self._is_in_one_module(group) and self._has_same_inputs(group)

    def _has_same_shape(self, number: int, other: int) -> bool:
        """Of the first results; where a call has several, one of them may be the other's."""
        if not self._is_across:
            return result_shape(self._reference, number) == result_shape(self._candidate, other)
        others = result_shapes(self._candidate, other)
        return any(is_laid_out_alike(one, two) for one in result_shapes(self._reference, number) for two in others)

    def _is_in_one_module(self, group: Group) -> bool:
        node = common_module(self._reference, group.reference, self._modules)
        other = common_module(self._candidate, group.candidate, self._matched_candidates)
        return self._modules.get(node) is other

    def _has_same_inputs(self, group: Group) -> bool:
        """As far as producers are known; where none is, a layer is known by its module."""
        given = set(sources_of(self._reference, group.reference))
        other_given = set(sources_of(self._candidate, group.candidate))
        known = self._other_partner.keys() | set(self._ends.values())
        producers = {self._stand_in(source) for source in given} - {-1}
        other_producers = {source for source in other_given if source in known}
        if not producers or not other_producers:
            shapes = set(leaf_shapes(self._reference, group.reference))
            other_shapes = set(leaf_shapes(self._candidate, group.candidate))
            takes_nothing = self._is_across and not (given or other_given or shapes or other_shapes)
            return group.is_layer or takes_nothing or bool(shapes & other_shapes)
        return len(producers & other_producers) >= _SHARED_INPUTS * min(len(producers), len(other_producers))

    def _stand_in(self, source: int) -> int:
        return self._partner.get(source, self._ends.get(source, -1))

    def _split(self, group: Group) -> list[Group]:
        """Where both sides have the same value on the way, one group ends and the next begins."""
        if len(group.exits) != 1:
            return [group]
        made = self._find_made(group)
        heads, tail = self._cut(group, [made]) if made is not None else ([group], None)
        parts, last = self._cut(heads[0], longest_rising(self._equal_values(heads[0])))
        return [*parts, last, *([] if tail is None else [tail])]

    def _find_made(self, group: Group) -> tuple[int, int] | None:
        """Where both sides end with calls that only pass a value on: those that made it."""
        end, other_end = group.exits[0]
        made = last_made(self._reference, end, group.reference)
        other_made = last_made(self._candidate, other_end, group.candidate)
        if not self._is_across or made == end or other_made == other_end:
            return None
        return (made, other_made) if self._has_same_shape(made, other_made) else None

    def _equal_values(self, group: Group) -> list[tuple[int, int]]:
        """Calls on both sides, before the end, that return the same value."""
        # Of several with the same numbers the first: what follows has only turned them.
        results = {result_value(self._candidate, number): number for number in sorted(group.candidate, reverse=True)}
        results.pop(UNKNOWN_VALUE, None)
        found = []
        for number in sorted(group.reference):
            other = results.get(result_value(self._reference, number), -1)
            if other >= 0 and self._has_same_shape(number, other):
                found.append((number, other))
        # Where the ends agree, they belong together, also if an end has the numbers of a call before it.
        ends = [pair for pair in group.exits if self._has_same_result(*pair)]
        taken, other_taken = {one for one, _ in ends}, {other for _, other in ends}
        found = [(one, other) for one, other in found if one not in taken and other not in other_taken]
        return [pair for pair in found if pair not in group.exits]

    def _has_same_result(self, number: int, other: int) -> bool:
        value = result_value(self._reference, number)
        return value != UNKNOWN_VALUE and value == result_value(self._candidate, other)

    def _cut(self, group: Group, cuts: list[tuple[int, int]]) -> tuple[list[Group], Group]:
        """What leads to each cut, and what is left."""
        if not cuts:
            return [], group
        parts: list[Group] = []
        free, other_free = set(group.reference), set(group.candidate)
        for cut in cuts:
            part = Group(closure(self._reference, cut[0], free), closure(self._candidate, cut[1], other_free), [cut])
            free -= part.reference
            other_free -= part.candidate
            parts.append(part)
        return parts, Group(free, other_free, [pair for pair in group.exits if pair not in cuts])

    # -- without data flow

    def _gap_groups(self) -> Iterator[Group]:
        """Runs of free calls that follow the same pair directly and end before the same pair."""
        ends = dict(free_runs(self._reference, self._partner))
        other_ends = dict(free_runs(self._candidate, self._other_partner))
        for before, (calls, after) in ends.items():
            other_before = -1 if before == -1 else self._partner[before]
            other_calls, other_after = other_ends.get(other_before, ([], -2))
            expected = -1 if after == -1 else self._partner[after]
            if other_calls and other_after == expected and self._has_same_ends(calls, other_calls):
                yield Group(set(calls), set(other_calls), [(calls[-1], other_calls[-1])])

    def _has_same_ends(self, calls: list[int], other_calls: list[int]) -> bool:
        if len(calls) > _MAX_CALLS or len(other_calls) > _MAX_CALLS or min(len(calls), len(other_calls)) > 1:
            return False
        shape = result_shape(self._reference, calls[-1])
        first = first_shape(self._reference, calls[0])
        return (
            shape is not None
            and shape == result_shape(self._candidate, other_calls[-1])
            and first == first_shape(self._candidate, other_calls[0])
        )
