"""Which call of the reference stands against which of the candidate.

Two runs with the same names in the same order pair by name. Otherwise a counter says little: after one missing layer
`Functional.linear.5` is another call. So modules are matched first, from the top down, and calls are aligned in order
inside each pair of modules. A backward call follows its forward call. Values and data flow say which of several equal
calls is meant, and values of parameters which modules are the same; no two calls of different operations become a pair
by them.

The two runs are put into a canonical order first: swapping them gives the mirrored pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tensorprobe.compare.garbage import garbage_left_alone
from tensorprobe.compare.match.alignment import Alignment, Match, SlotPair, Unpaired
from tensorprobe.compare.match.fingerprint import Fingerprint, Fingerprinter
from tensorprobe.compare.match.group import GroupFinder
from tensorprobe.compare.match.group_match import GroupMatcher
from tensorprobe.compare.match.idle import IdleFinder
from tensorprobe.compare.match.mapped_name import MappedNames
from tensorprobe.compare.match.mapping import Mapping as MappingFile
from tensorprobe.compare.match.module_match import ModuleMatcher
from tensorprobe.compare.match.module_path import match_paths
from tensorprobe.compare.match.nearest import find_nearest
from tensorprobe.compare.match.operand import cross_operands
from tensorprobe.compare.match.part import find_parts
from tensorprobe.compare.match.partner import Partners
from tensorprobe.compare.match.proof import Proof
from tensorprobe.compare.match.rule import MAPPING, SAME_NAME, TRUTH, name_rule
from tensorprobe.compare.match.sequence import Items, align_sequence, longest_rising
from tensorprobe.compare.match.side import Side
from tensorprobe.errors import UsageError
from tensorprobe.model.name import BACKWARD, RECOMPUTE
from tensorprobe.run.call import Call
from tensorprobe.run.module_tree import ModuleNode
from tensorprobe.run.step import Run
from tensorprobe.word.spelling import WRAPPER_CLASSES
from tensorprobe.word.vocabulary import is_across_frameworks


def align_calls(
    reference: Run, candidate: Run, mapping: MappingFile | None = None, proof: Proof | None = None
) -> Alignment:
    """Every call of both runs, in exactly one match or unpaired. What the mapping names and is not there is listed.
    `proof`: what is known of calls by what they compute."""
    mapping, proof = mapping or MappingFile(), proof or Proof()
    names = [call.name for call in reference.calls]
    other_names = [call.name for call in candidate.calls]
    if names == other_names and not mapping:
        return cross_operands(_pair_by_name(reference, candidate))
    with garbage_left_alone():
        if not mapping and (len(names), names) > (len(other_names), other_names):
            return cross_operands(Aligner(candidate, reference, mapping, proof.mirrored(), is_mirrored=True).align())
        return cross_operands(Aligner(reference, candidate, mapping, proof).align())


def _pair_by_name(reference: Run, candidate: Run) -> Alignment:
    pairs = list(zip(reference.calls, candidate.calls, strict=True))
    return Alignment(
        tuple(Match((one,), (other,), SAME_NAME) for one, other in pairs),
        # At level L1 modules may have other names although all calls have the same.
        modules={
            one.module_path: other.module_path
            for one, other in pairs
            if one.module_path != other.module_path and one.module_path is not None and other.module_path is not None
        },
        has_same_gradient_order=reference.has_flow == candidate.has_flow,
    )


def _place(match: Match) -> int:
    return match.reference[-1].position


Events = list[int | ModuleNode]


class Aligner:
    """Pairs are kept as places in the two lists of calls. Mirrored: the two runs were exchanged, the result is not."""

    def __init__(
        self, reference: Run, candidate: Run, mapping: MappingFile, proof: Proof, is_mirrored: bool = False
    ) -> None:
        fingerprinter = Fingerprinter(reference, candidate)
        self.reference = Side(reference, fingerprinter)
        self.candidate = Side(candidate, fingerprinter)
        self._partners = Partners(self.reference, self.candidate, proof)
        self.partner, self.other_partner = self._partners.of, self._partners.of_other
        self.modules: dict[ModuleNode, ModuleNode] = {}
        self._matched_modules: set[ModuleNode] = set()
        self.group_matches: list[Match] = []
        self.mapping = mapping
        self.is_mirrored = is_mirrored
        self._is_across = is_across_frameworks(reference.framework, candidate.framework)
        self.mapped: set[int] = set()
        """Calls of the reference whose partner the mapping names."""
        self.unknown_names: dict[tuple[str, str], UsageError] = {}
        self._is_proved_equal = proof.is_equal
        self.slots: dict[str, dict[str, str]] = {}

    def align(self) -> Alignment:
        self._match_modules()
        self._pair_saved()
        self._partners.pair_proved()
        self._pair_module_calls()
        self._pair_contexts()
        self._pair_framework_calls()
        self._pair_rest("api")
        if self._is_across:  # one module that is called twice here may be two there
            self._pair_rest("module")
        self._dissolve_parts()
        self._group()
        self._pair_other_directions()
        self._pair_orphans()
        self._pair_gradients()
        return self._collect()

    def _pair_saved(self) -> None:
        for number, call in enumerate(self.reference.calls):
            other = self.candidate.number_of.get(call.name)
            if call.kind == "saved" and other is not None and self.candidate.calls[other].kind == "saved":
                self._partners.pair(number, other)

    def _match_modules(self) -> None:
        sides = (self.reference, self.candidate)
        is_flat = any(side.has_api_calls and not side.has_contexts for side in sides)
        has_no_top = not all(side.has_root_context for side in sides)
        contents = [side.build(is_flat, has_no_top) for side in sides]
        forced: dict[ModuleNode, ModuleNode] = {}
        if self.mapping:
            names = MappedNames(self.mapping, self.reference, self.candidate)
            self._pair_all(names.calls.items())
            self.mapped = set(names.calls)
            forced, self.slots, self.unknown_names = names.modules, names.slots, names.unknown
        same = match_paths(self.reference.run, self.reference.tree, self.candidate.run, self.candidate.tree)
        matcher = ModuleMatcher(contents[0], contents[1], {**same, **forced})
        self.modules = matcher.match(self.reference.tree, self.candidate.tree)
        self._matched_modules = set(self.modules.values())
        for node in forced:
            for below in node.walk():
                self.mapped.update(below.records)
                self.mapped.update(below.gradients)

    def _pair_module_calls(self) -> None:
        """The calls of a module in their order; a wrapper only with a wrapper."""
        for node, other in self.modules.items():
            if not node.records or not other.records:
                continue
            for is_wrapper in (False, True):
                records = self._partners.free(_module_records(self.reference, node, is_wrapper))
                other_records = self._partners.other_free(_module_records(self.candidate, other, is_wrapper))
                if len(records) == len(other_records):
                    self._pair_all(zip(records, other_records, strict=True))
                elif records and other_records:
                    self._align_numbers(records, other_records, ignores_op=True)

    def _pair_contexts(self) -> None:
        """What is called in each pair of modules; where both do the same first, because that helps to place others."""
        waiting = []
        for node, other in self.modules.items():
            calls = self._partners.free(event for event in node.events if isinstance(event, int))
            other_calls = self._partners.other_free(event for event in other.events if isinstance(event, int))
            if [self.reference.fingerprint(call).op for call in calls] == [
                self.candidate.fingerprint(call).op for call in other_calls
            ]:
                self._pair_all(zip(calls, other_calls, strict=True))
            elif calls and other_calls:
                free, other_free = set(calls), set(other_calls)
                events = [event for event in node.events if not isinstance(event, int) or event in free]
                others = [event for event in other.events if not isinstance(event, int) or event in other_free]
                waiting.append((events, others))
        marks = {node: -place for place, node in enumerate(self.modules, 1)}
        marks.update({other: marks[node] for node, other in self.modules.items()})
        has_flow = self.reference.has_flow and self.candidate.has_flow
        for _ in range(2 if has_flow else 1):  # the second time, producers inside these modules are known too
            for events, other_events in waiting:
                self._align_events(events, other_events, marks)

    def _align_events(self, events: Events, other_events: Events, marks: Mapping[ModuleNode, int]) -> None:
        """Calls in order, and between them the children that were entered, which hold them in place."""
        items, other_items = Items(), Items()
        for event in events:
            if isinstance(event, int):
                self._add(items, self.reference, event)
            else:
                items.add_mark(marks.get(event, _NO_PARTNER))
        for event in other_events:
            if isinstance(event, int):
                self._add(other_items, self.candidate, event)
            else:
                other_items.add_mark(marks.get(event, _NO_OTHER_PARTNER))
        for event in events:
            if isinstance(event, int) and event in self.partner:
                self._partners.part(event)
        for row, column in align_sequence(items, other_items):
            event, other_event = events[row], other_events[column]
            if isinstance(event, int) and isinstance(other_event, int):
                self._partners.pair(event, other_event)

    def _align_numbers(self, numbers: list[int], others: list[int], ignores_op: bool = False) -> None:
        numbers, others = self._partners.free(numbers), self._partners.other_free(others)
        items = self._items(self.reference, numbers, ignores_op)
        other_items = self._items(self.candidate, others, ignores_op)
        self._pair_all((numbers[row], others[column]) for row, column in align_sequence(items, other_items))

    def _items(self, side: Side, numbers: list[int], ignores_op: bool = False) -> Items:
        items = Items()
        for number in numbers:
            self._add(items, side, number, ignores_op)
        return items

    def _add(self, items: Items, side: Side, number: int, ignores_op: bool = False) -> None:
        found = side.fingerprint(number)
        if ignores_op:
            found = Fingerprint(0, found.shape, found.values, found.leaves)
        items.add(found, self._flow(side, number), side.calls[number].name)

    def _flow(self, side: Side, number: int) -> tuple[int, ...]:
        """Who uses its result first, and who made its tensors: places in the candidate, from 1; 0 without a partner."""
        around = (side.first_consumer.get(number, -1), *side.sources(number))
        if side is self.reference:
            return tuple([self.partner.get(one, -1) + 1 for one in around])
        return tuple([one + 1 if one in self.other_partner else 0 for one in around])

    def _pair_all(self, pairs: Iterable[tuple[int, int]]) -> None:
        for number, other in pairs:
            self._partners.pair(number, other)

    def _pair_framework_calls(self) -> None:
        """What an optimizer or the like calls, among itself."""
        callers = dict.fromkeys(self.reference.calls[number].caller for number in self.reference.framework_made)
        for caller in callers:
            numbers, others = (
                [number for number in side.framework_made if side.calls[number].caller == caller]
                for side in (self.reference, self.candidate)
            )
            self._align_numbers(numbers, others)

    def _pair_rest(self, kind: str) -> None:
        """Calls that moved into another module: in order, between the pairs that are there."""
        numbers, others = (
            [number for number in side.forward if side.calls[number].kind == kind]
            for side in (self.reference, self.candidate)
        )
        place_of = {number: place for place, number in enumerate(others)}
        known = [
            (place, place_of[self.partner[number]])
            for place, number in enumerate(numbers)
            if self.partner.get(number) in place_of
        ]
        before = before_other = -1
        for place, other_place in [*longest_rising(known), (len(numbers), len(others))]:
            left = self._partners.free(numbers[before + 1 : place])
            other_left = self._partners.other_free(others[before_other + 1 : other_place])
            if left and other_left:
                found = align_sequence(self._items(self.reference, left), self._items(self.candidate, other_left))
                moved = ((left[row], other_left[column]) for row, column in found)
                self._pair_all(pair for pair in moved if self._may_have_moved(*pair))
            before, before_other = place, other_place

    def _may_have_moved(self, number: int, other: int) -> bool:
        """Into a module around it or inside it, not into another one that has a partner of its own."""
        node, other_node = self.reference.node(number), self.candidate.node(other)
        around = next((self.modules[one] for one in node.way_up() if one in self.modules), None)
        other_around = next((one for one in other_node.way_up() if one in self._matched_modules), None)
        return around in other_node.way_up() or other_around in {self.modules.get(one) for one in node.way_up()}

    def _dissolve_parts(self) -> None:
        """A part of what one call does in the other run is no partner of that call, the group of all parts is."""
        for number in find_parts(self.reference, self.candidate, self.partner, self.other_partner, self._is_across):
            if number not in self.mapped and number not in self._partners.proved:
                self._partners.part(number)

    def _group(self) -> None:
        sides = self.reference, self.candidate
        finder = GroupFinder(*sides, self.partner, self.other_partner, self.modules, self._is_across)
        found = [group for group in finder.find(self._partners.regions) if not self._partners.is_refuted_group(group)]
        exits = {pair for group in found for pair in group.exits}
        builder = GroupMatcher(self.reference, self.candidate, self.partner, exits)
        for group in found:
            self.group_matches.extend(builder.matches(group))

    def _pair_other_directions(self) -> None:
        """A backward call and a recomputation stand where their forward calls stand."""
        for number, other in list(self.partner.items()):
            call, other_call = self.reference.calls[number], self.candidate.calls[other]
            for direction in (BACKWARD, RECOMPUTE):
                follower = self.reference.other_direction(call, direction)
                other_follower = self.candidate.other_direction(other_call, direction)
                if follower is not None and other_follower is not None:
                    self._partners.pair(follower, other_follower)

    def _pair_orphans(self) -> None:
        """Backward calls without a recorded forward call: in order."""
        for kind in ("api", "module"):
            for direction in (BACKWARD, RECOMPUTE):
                numbers, others = (
                    [n for n in side.orphans if side.calls[n].kind == kind and side.calls[n].direction == direction]
                    for side in (self.reference, self.candidate)
                )
                if numbers and others:
                    self._align_numbers(numbers, others)

    def _pair_gradients(self) -> None:
        for node, other in self.modules.items():
            if not node.gradients or not other.gradients:
                continue
            for is_wrapper in (False, True):
                numbers, others = (
                    [n for n in one.gradients if (side.calls[n].path != one.path) == is_wrapper]
                    for side, one in ((self.reference, node), (self.candidate, other))
                )
                self._pair_all(zip(numbers, others, strict=False))

    def _rule(self, number: int, other: int) -> str:
        if number in self.mapped:
            return MAPPING
        if number in self._partners.proved:
            return TRUTH
        return name_rule(self.reference.calls[number], self.candidate.calls[other])

    def _collect(self) -> Alignment:
        calls, others = self.reference.calls, self.candidate.calls
        matches = [
            self._match((calls[number],), (others[other],), self._rule(number, other))
            for number, other in self.partner.items()
        ]
        for match in self.group_matches:
            matches.append(self._match(match.reference, match.candidate, match.rule, match.boundary))
            members = [self.reference.number_of[call.name] for call in match.reference]
            other_members = [self.candidate.number_of[call.name] for call in match.candidate]
            # Towards the others, the last call stands for the group: it has the result.
            self.partner.update(dict.fromkeys(members, other_members[-1]))
            self.other_partner.update(dict.fromkeys(other_members, members[-1]))
        lonely = [
            tuple(self._lonely(self.reference, self.candidate, self.partner, self.other_partner)),
            tuple(self._lonely(self.candidate, self.reference, self.other_partner, self.partner)),
        ]
        paths = [(node.path or "", other.path or "") for node, other in self.modules.items()]
        if self.is_mirrored:
            lonely.reverse()
            paths = [(other, path) for path, other in paths]
        return Alignment(
            tuple(sorted(matches, key=_place)),
            lonely[0],
            lonely[1],
            {path: other for path, other in paths if path != other},
            self.slots,
            self.unknown_names,
            self.reference.has_flow == self.candidate.has_flow,
        )

    def _lonely(
        self, side: Side, other: Side, partner: Mapping[int, int], other_partner: Mapping[int, int]
    ) -> Iterator[Unpaired]:
        idle = IdleFinder(side, partner, other).find() if self._is_across else {}
        for found in find_nearest(side, other, partner, other_partner):
            known = idle.get(side.number_of[found.call.name])
            if known is not None:
                yield Unpaired(found.call, None, known.why, True, known.is_passed_by)
            else:
                yield Unpaired(found.call, None, NEEDLESS, True) if self._is_proved_equal else found

    def _match(
        self, calls: tuple[Call, ...], others: tuple[Call, ...], rule: str, boundary: Iterable[SlotPair] = ()
    ) -> Match:
        if self.is_mirrored:
            return Match(others, calls, rule, tuple((other, one) for one, other in boundary))
        return Match(calls, others, rule, tuple(boundary))


NEEDLESS = "the runs compute the same with different calls"
_NO_PARTNER, _NO_OTHER_PARTNER = -(10**9), -(10**9) - 1


def _module_records(side: Side, node: ModuleNode, is_wrapper: bool) -> list[int]:
    """The calls of a module itself, or of the wrappers around it."""
    return [
        number
        for number in node.records
        if (side.calls[number].path != node.path or side.calls[number].op in WRAPPER_CLASSES) == is_wrapper
    ]
