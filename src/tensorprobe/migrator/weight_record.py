"""What recorded steps of two networks say of their weights. The candidate's weights need not be converted yet.

Three things are certain enough:

- Numbers that two weights have, and no others: the same largest and smallest, mean and norm. Constants, such as those
  of a fresh norm, tell nothing.
- The place in the computation: calls of both runs are paired as `compare` pairs them, and so are the modules that made
  them. Of layers that take the same input, such as query, key and value, either may be called first: the order of the
  calls says nothing of them, and only what uses their results does.
- How the result of a layer is cut: into parts that lie one after the other (`chunk`, `split`, a `view` as
  [..., 3, heads, size]), as query, key and value do in one matrix.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tensorprobe.compare.filtered_run import filter_alike
from tensorprobe.compare.lost_source import forget_data_calls, restore_sources
from tensorprobe.compare.match.align import align_calls
from tensorprobe.compare.match.mapping import Mapping
from tensorprobe.compare.match.rule import GROUP, unwrap
from tensorprobe.compare.step import pair_ranks
from tensorprobe.errors import UsageError
from tensorprobe.model.name import FORWARD
from tensorprobe.run.step import Run, read_run
from tensorprobe.store.reader import open_dump
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.signature import MINDSPORE
from tensorprobe.word.vocabulary import is_across_frameworks

_STATE = ("parameters.", "buffers.")
_DIGITS = 5
_PARTS = 3
"""Query, key and value."""
_BEGIN, _END = "<begin>", "<end>"


@dataclass(frozen=True)
class RecordedPairs:
    """Names of the source and of the target, without what wrappers put in front."""

    values: dict[str, str] = field(default_factory=dict)
    """Weights with the same numbers."""
    layers: dict[str, str] = field(default_factory=dict)
    """Modules with the same place in the computation."""
    cut: tuple[frozenset[str], frozenset[str]] = (frozenset(), frozenset())
    """Of each side, modules whose result is cut into parts that lie one after the other."""


def pair_recorded(source: str | Path, target: str | Path) -> RecordedPairs:
    """By the first step and process that both dumps have."""
    pairs, _ = pair_ranks(open_dump(source), open_dump(target))
    if not pairs:
        raise UsageError(f"{source} and {target} have no step and rank in common; record the same step of both")
    runs = filter_alike(read_run(pairs[0].reference), read_run(pairs[0].candidate))
    return RecordedPairs(_pair_values(*runs), _pair_layers(*runs), (_find_cut(runs[0]), _find_cut(runs[1])))


def _pair_values(source: Run, target: Run) -> dict[str, str]:
    names, others = _only_names(source), _only_names(target)
    return {name: others[mark] for mark, name in names.items() if mark in others}


def _only_names(run: Run) -> dict[Hashable, str]:
    """What only one weight of a run looks like."""
    found: dict[str, Hashable] = {}
    for call in run.calls:
        if call.kind == "module" and call.direction == FORWARD:
            for slot in call.tensors:
                mark = _mark(slot) if slot.slot.startswith(_STATE) else None
                if mark is not None:
                    name = f"{unwrap(call.path)}.{slot.slot.partition('.')[2]}".removeprefix(".")
                    found.setdefault(name, mark)
    counts = Counter(found.values())
    return {mark: name for name, mark in found.items() if counts[mark] == 1}


def _mark(slot: TensorSlot) -> Hashable:
    """The numbers of a tensor, whichever way round it lies; None for what tells nothing."""
    numbers = (slot.max, slot.min, slot.mean, slot.norm)
    floats = [float(number) for number in numbers if isinstance(number, (int, float))]
    if slot.shape is None or len(floats) != len(numbers) or slot.has_nan or slot.has_inf or floats[0] == floats[1]:
        return None
    scale = max(abs(floats[0]), abs(floats[1]))
    rounded = [f"{number:.{_DIGITS}g}" for number in (floats[0], floats[1], floats[3])]
    return (*sorted(size for size in slot.shape if size != 1), *rounded, round(floats[2] / scale, _DIGITS - 1))


def _pair_layers(source: Run, target: Run) -> dict[str, str]:
    for run in (source, target):
        if run.framework == MINDSPORE and run.has_flow:
            restore_sources(run.calls)
        if is_across_frameworks(source.framework, target.framework):
            forget_data_calls(run.calls)
    votes = set(_vote(source, target))
    counts = [Counter(pair[side] for pair in votes) for side in (0, 1)]
    pairs = {one: other for one, other in votes if counts[0][one] == counts[1][other] == 1}
    orders = _order_layers(source), _order_layers(target)
    while found := dict(_fill_gaps(*orders, pairs)):
        pairs.update(found)
    return pairs


def _vote(source: Run, target: Run) -> Iterator[tuple[str, str]]:
    """The modules that made calls which are a pair. A group of calls is known by what uses its result."""
    parallel = _find_parallel(source), _find_parallel(target)
    for match in align_calls(source, target, Mapping()).matches:
        is_group = match.rule == GROUP
        sides = []
        for calls, names in zip((match.reference, match.candidate), parallel, strict=True):
            paths = {call.module_path for call in calls if call.direction == FORWARD}
            if len(paths) == 1 and (is_group or not any(call.name in names for call in calls)):
                sides.append(paths.pop())
        if len(sides) == 2 and sides[0] is not None and sides[1] is not None:
            yield unwrap(sides[0]), unwrap(sides[1])


def _find_parallel(run: Run) -> set[str]:
    """Calls of one kind, by several modules, that take the same input and give results of one shape."""
    found: dict[Hashable, dict[str, str | None]] = {}
    for call in run.calls:
        inputs = [slot for slot in call.tensors if slot.is_input and slot.slot.startswith(("input.", "kwargs."))]
        outputs = [slot.shape for slot in call.tensors if not slot.is_input]
        if call.direction == FORWARD and inputs and outputs:
            first = inputs[0]
            given = first.source or (first.shape, first.max, first.min, first.mean, first.norm)
            found.setdefault((call.kind, word_of(call), given, outputs[0]), {})[call.name] = call.module_path
    return {name for paths in found.values() if len(set(paths.values())) > 1 for name in paths}


def _find_cut(run: Run) -> frozenset[str]:
    found: dict[str, set[bool]] = {}
    for call in run.calls:
        taken = next((slot for slot in call.tensors if slot.is_input), None)
        maker = run.by_name.get(taken.source) if taken is not None and taken.source else None
        if call.direction != FORWARD or taken is None or maker is None or maker.module_path in (None, call.module_path):
            continue
        made = [slot.shape or () for slot in call.tensors if not slot.is_input]
        verdict = _is_cut(taken.shape or (), made)
        if verdict is not None:
            found.setdefault(unwrap(maker.module_path or ""), set()).add(verdict)
    return frozenset(path for path, verdicts in found.items() if verdicts == {True})


def _is_cut(shape: tuple[int, ...], made: list[tuple[int, ...]]) -> bool | None:
    """Into parts that lie one after the other? False: head by head. None: that is not what the call does.

    >>> _is_cut((2, 24), [(2, 8)] * 3), _is_cut((2, 24), [(2, 3, 4, 2)]), _is_cut((2, 24), [(2, 4, 3, 2)])
    (True, True, False)
    """
    before = shape[:-1]
    if len(made) > 1:
        is_along_last = all(part[:-1] == before and part for part in made)
        return True if is_along_last and sum(part[-1] for part in made) == shape[-1] else None
    rest = made[0][len(before) :] if made and made[0][: len(before)] == before else ()
    if len(rest) != 3 or not shape or math.prod(rest) != shape[-1] or (rest[0] == _PARTS) == (rest[1] == _PARTS):
        return None
    return rest[0] == _PARTS


_Layers = dict[str, tuple[tuple[int, ...], ...]]
"""Module paths and the shapes of their weights, in the order of their first calls."""


def _order_layers(run: Run) -> _Layers:
    found: _Layers = {}
    for call in run.calls:
        if call.kind == "module" and call.direction == FORWARD:
            shapes = [slot.shape for slot in call.tensors if slot.slot.startswith(_STATE) and slot.shape]
            if shapes:
                found.setdefault(unwrap(call.path), tuple(sorted(shapes)))
    return found


def _fill_gaps(source: _Layers, target: _Layers, pairs: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Between two layers that follow each other on both sides, the only ones in their shapes."""
    gaps, other_gaps = _find_gaps(source, pairs.keys()), _find_gaps(target, set(pairs.values()))
    for (before, after), paths in gaps.items():
        others = other_gaps.get((pairs.get(before, before), pairs.get(after, after)), [])
        for path in paths:
            same = [one for one in paths if source[one] == source[path]]
            fitting = [other for other in others if target[other] == source[path]]
            if len(same) == len(fitting) == 1:
                yield path, fitting[0]


def _find_gaps(layers: _Layers, known: Collection[str]) -> dict[tuple[str, str], list[str]]:
    """The layers without a partner between two that have one; the ends of the run are known."""
    found: dict[tuple[str, str], list[str]] = {}
    waiting: list[str] = []
    before = _BEGIN
    for path in [*layers, _END]:
        if path in known or path == _END:
            found[before, path] = waiting
            before, waiting = path, []
        else:
            waiting.append(path)
    return found
