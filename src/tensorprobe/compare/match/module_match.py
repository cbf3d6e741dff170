"""Which module of the reference is which of the candidate, top down: by name, else by class, shapes, place and values.

Children that are counted (`layers.0`, `layers.1` …) shift when one is missing: they are paired by name only when both
sides have the same ones and each does the same; else they are aligned in order, and the values of their parameters
say which of many equal layers is the missing one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensorprobe.compare.match.fingerprint import UNKNOWN_VALUE, Fingerprint, Fingerprinter
from tensorprobe.run.module_tree import ModuleNode, ModuleTree
from tensorprobe.run.step import Run
from tensorprobe.word.layer_word import word_of

NodePair = tuple[ModuleNode, ModuleNode]
_Shares = dict[tuple[int, int], float]
"""By the places of two siblings."""

_ENOUGH_ALIKE = 0.3
_MAX_STEPS = 64
_MAX_OPENED = 16
_KIND_SCORE = 4.0
_NAME_SCORE = 1.0
_VALUE_SCORE = 6.0


@dataclass(slots=True, eq=False)
class NodeContent:
    """What a module and all below it do."""

    class_name: str | None
    calls: list[int]
    """Operation and shapes of each call, as numbers."""
    kind: int
    """Equal for equal `calls`, in any order."""

    @property
    def type(self) -> Hashable:
        """What decides whether it is like another."""
        return self.class_name, self.kind


class TreeContent:
    """The content of every node of a tree."""

    def __init__(
        self, tree: ModuleTree, run: Run, fingerprints: list[Fingerprint | None], fingerprinter: Fingerprinter
    ) -> None:
        self._fingerprints = fingerprints
        self._contents: dict[ModuleNode, NodeContent] = {}
        for node in reversed(list(tree.top.walk())):  # from the leaves up
            calls = [fingerprint.shape for fingerprint in self._own(node)]
            for child in node.children.values():
                calls += self._contents[child].calls
            calls.sort()
            classes = [word_of(run.calls[number]) for number in node.records if run.calls[number].path == node.path]
            kind = fingerprinter.number(("calls", *calls))
            self._contents[node] = NodeContent(classes[0] if classes else None, calls, kind)

    def __getitem__(self, node: ModuleNode) -> NodeContent:
        return self._contents[node]

    def values(self, node: ModuleNode) -> tuple[set[int], set[int]]:
        """All that passed through its calls, and those of its parameters."""
        values: set[int] = set()
        leaves: set[int] = set()
        for below in node.walk():
            for fingerprint in self._own(below):
                values.update(fingerprint.values)
                leaves.update(fingerprint.leaves)
        values.discard(UNKNOWN_VALUE)
        leaves.discard(UNKNOWN_VALUE)
        return values, leaves

    def _own(self, node: ModuleNode) -> Iterator[Fingerprint]:
        for number in (*(event for event in node.events if isinstance(event, int)), *node.records):
            fingerprint = self._fingerprints[number]
            assert fingerprint is not None
            yield fingerprint


class ModuleMatcher:
    """Pairs the nodes of two trees; `forced` pairs come from a mapping file."""

    def __init__(
        self, reference: TreeContent, candidate: TreeContent, forced: Mapping[ModuleNode, ModuleNode] | None = None
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._forced = dict(forced or {})
        self._taken = set(self._forced.values())
        self.pairs: dict[ModuleNode, ModuleNode] = {}
        self._shares: dict[tuple[int, int], float] = {}

    def match(self, reference: ModuleTree, candidate: ModuleTree) -> dict[ModuleNode, ModuleNode]:
        self.pairs.update(self._forced)
        waiting = [(reference.top, candidate.top), *self._forced.items()]
        while waiting:
            node, other = waiting.pop()
            if node not in self._forced:
                node, other = self._descend(node, other)
                self.pairs[node] = other
            waiting.extend(self._match_children(node, other))
        return self.pairs

    def _descend(self, reference: ModuleNode, candidate: ModuleNode) -> NodePair:
        """Step over levels that only one side has: `model.layers.0` against `layers.0`."""
        if _shared_names(reference, candidate) or not reference.children or not candidate.children:
            return reference, candidate
        steps = [(reference, node) for node in _nodes_below(candidate) if node not in self._taken]
        steps += [(node, candidate) for node in _nodes_below(reference) if self._is_free(node)]
        best = max(steps, key=lambda step: _shared_names(*step))
        if _shared_names(*best):
            return best
        # Nothing has the same name: a module that only holds one other is a level of its own.
        while len(reference.children) == 1 < len(candidate.children) and not _has_calls(reference):
            reference = next(iter(reference.children.values()))
        while len(candidate.children) == 1 < len(reference.children) and not _has_calls(candidate):
            candidate = next(iter(candidate.children.values()))
        return reference, candidate

    def _match_children(self, reference: ModuleNode, candidate: ModuleNode) -> list[NodePair]:
        if not reference.children or not candidate.children:
            return []
        ours = [child for child in reference.children.values() if self._is_free(child)]
        theirs = {child.name: child for child in candidate.children.values() if child not in self._taken}
        pairs: list[NodePair] = []
        counted = [child for child in ours if child.name.isdecimal()]
        other_counted = [child for child in theirs.values() if child.name.isdecimal()]
        if counted and other_counted:
            pairs.extend(self._match_counted(counted, other_counted))
            ours = [child for child in ours if not child.name.isdecimal()]
            theirs = {name: child for name, child in theirs.items() if not name.isdecimal()}
        pairs.extend((child, theirs[child.name]) for child in ours if child.name in theirs)
        paired = {child.name for child, _ in pairs}
        left = [child for child in ours if child.name not in paired]
        other_left = [child for name, child in theirs.items() if name not in paired]
        if left and other_left:
            pairs.extend(self._align_over_levels(left, other_left))
        return pairs

    def _is_free(self, node: ModuleNode) -> bool:
        return node not in self._forced and node not in self.pairs

    def _match_counted(self, reference: list[ModuleNode], candidate: list[ModuleNode]) -> list[NodePair]:
        by_name = {child.name: child for child in candidate}
        if {child.name for child in reference} == set(by_name):
            pairs = [(child, by_name[child.name]) for child in reference]
            if all(self._does_the_same(*pair) for pair in pairs):
                return pairs
        return self._align_scored(reference, candidate)[1]

    def _does_the_same(self, reference: ModuleNode, candidate: ModuleNode) -> bool:
        one, other = self._reference[reference], self._candidate[candidate]
        if one.class_name is not None and other.class_name is not None:
            return one.class_name == other.class_name
        return one.kind == other.kind or self._likeness(reference, candidate) > 0.5

    def _align_over_levels(self, reference: list[ModuleNode], candidate: list[ModuleNode]) -> list[NodePair]:
        """A Sequential that only one side has is stepped over, where what it holds fits better than it does itself."""
        total, pairs = self._align_scored(reference, candidate)
        for _ in range(_MAX_OPENED):
            best = None
            for opened, lists in _openings(reference, candidate):
                found, found_pairs = self._align_scored(*lists)
                if found > total and _count_children(opened, found_pairs) > 1:
                    total, pairs, best = found, found_pairs, lists
            if best is None:
                break
            reference, candidate = best
        return pairs

    def _align_scored(self, reference: list[ModuleNode], candidate: list[ModuleNode]) -> tuple[float, list[NodePair]]:
        """In order, so that what is alike stands against each other; values and names break ties. And how well."""
        scores = self._scores(reference, candidate)
        rows, columns = scores.shape
        # best[row, column]: of what is left from there on
        best = np.zeros((rows + 1, columns + 1))
        for row in range(rows - 1, -1, -1):
            paired = np.where(scores[row] > 0, best[row + 1, 1:] + scores[row], 0.0)
            here = np.maximum(paired, best[row + 1, :-1])
            best[row, :-1] = np.maximum.accumulate(here[::-1])[::-1]
        pairs = []
        row = column = 0
        while row < rows and column < columns:
            score = scores[row, column]
            if score > 0 and best[row, column] == best[row + 1, column + 1] + score:
                pairs.append((reference[row], candidate[column]))
                row, column = row + 1, column + 1
            elif best[row, column] == best[row + 1, column]:
                row += 1
            else:
                column += 1
        return float(best[0, 0]), pairs

    def _scores(self, reference: list[ModuleNode], candidate: list[ModuleNode]) -> npt.NDArray[np.float64]:
        types, rows = _distinct([self._reference[node].type for node in reference])
        other_types, columns = _distinct([self._candidate[node].type for node in candidate])
        # There may be hundreds of layers, but of few types.
        of_types = [[self._likeness(reference[one], candidate[other]) for other in other_types] for one in types]
        alike = np.array(of_types)[np.ix_(rows, columns)]
        has_same_name = np.equal.outer([node.name for node in reference], [node.name for node in candidate])
        scores: npt.NDArray[np.float64] = _KIND_SCORE * alike + _NAME_SCORE * has_same_name
        values, parameters = self._share_values(reference, candidate)
        for pair in values.keys() | parameters.keys():
            scores[pair] += _VALUE_SCORE * max(values.get(pair, 0.0), parameters.get(pair, 0.0))
        # The same parameters make the same module, whatever the calls inside it are called.
        for pair, share in parameters.items():
            alike[pair] = max(alike[pair], share)
        scores[alike < _ENOUGH_ALIKE] = 0.0
        return scores

    def _share_values(self, reference: list[ModuleNode], candidate: list[ModuleNode]) -> list[_Shares]:
        """The share of values, and of parameters, that two siblings have in common and no other sibling has."""
        values = [self._reference.values(node) for node in reference]
        other_values = [self._candidate.values(node) for node in candidate]
        return [_shares([one[kind] for one in values], [one[kind] for one in other_values]) for kind in (0, 1)]

    def _likeness(self, reference: ModuleNode, candidate: ModuleNode) -> float:
        """0 to 1: do they do the same operations on the same shapes, and are they of one class?"""
        one, other = self._reference[reference], self._candidate[candidate]
        alike = self._share_of_kinds(one, other)
        if one.class_name is None or other.class_name is None:
            return alike
        return 0.5 * alike + (0.5 if one.class_name == other.class_name else 0.0)

    def _share_of_kinds(self, one: NodeContent, other: NodeContent) -> float:
        if one.kind == other.kind:
            return 1.0
        known = self._shares.get((one.kind, other.kind))
        if known is None:
            common = (Counter(one.calls) & Counter(other.calls)).total()
            known = self._shares[one.kind, other.kind] = common / max(len(one.calls), len(other.calls), 1)
        return known


def _shared_names(reference: ModuleNode, candidate: ModuleNode) -> int:
    return len(reference.children.keys() & candidate.children.keys())


def _nodes_below(node: ModuleNode) -> list[ModuleNode]:
    """The nearest ones, level by level."""
    found = [node]
    for above in found:
        found.extend(above.children.values())
        if len(found) > _MAX_STEPS:
            break
    return found[1 : _MAX_STEPS + 1]


def _openings(
    reference: list[ModuleNode], candidate: list[ModuleNode]
) -> Iterator[tuple[ModuleNode, tuple[list[ModuleNode], list[ModuleNode]]]]:
    """Each node that holds others, and both lists with what it holds in its place."""
    found = [(node, (_open(reference, node), candidate)) for node in reference if node.children]
    found += [(node, (reference, _open(candidate, node))) for node in candidate if node.children]
    for node, lists in found[:_MAX_OPENED]:
        if max(map(len, lists)) <= _MAX_STEPS:
            yield node, lists


def _open(nodes: list[ModuleNode], opened: ModuleNode) -> list[ModuleNode]:
    return [one for node in nodes for one in (node.children.values() if node is opened else (node,))]


def _count_children(opened: ModuleNode, pairs: list[NodePair]) -> int:
    return sum(node.parent is opened or other.parent is opened for node, other in pairs)


def _has_calls(node: ModuleNode) -> bool:
    return any(isinstance(event, int) for event in node.events)


def _distinct(types: list[Hashable]) -> tuple[list[int], list[int]]:
    """Where each different one is first, and for each entry which of these it is."""
    number_of = {kind: number for number, kind in enumerate(dict.fromkeys(types))}
    return [types.index(kind) for kind in number_of], [number_of[kind] for kind in types]


def _shares(values: list[set[int]], other_values: list[set[int]]) -> _Shares:
    places, other_places = _only_places(values), _only_places(other_values)
    counts = Counter((row, other_places[value]) for value, row in places.items() if value in other_places)
    sizes, other_sizes = Counter(places.values()), Counter(other_places.values())
    return {pair: count / min(sizes[pair[0]], other_sizes[pair[1]]) for pair, count in counts.items()}


def _only_places(sets: list[set[int]]) -> dict[int, int]:
    """For each value the one sibling that has it."""
    counts = Counter(value for values in sets for value in values)
    return {value: place for place, values in enumerate(sets) for value in values if counts[value] == 1}
