"""What became of the weights where one run holds them otherwise: three in one, a list as a stack, under another name.

They are found by their values; this only says it, in few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.observable import GradientPair, Observables
from tensorprobe.compare.truth.piece import pair_pieces
from tensorprobe.compare.truth.same_array import is_same
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue

_MAX_LINES = 3
_MAX_NAMED = 4
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class _Part:
    """One weight, and where it is in a larger one of the other run."""

    name: str
    word: str
    """`rows`; empty where `range` is a place as Python writes it: `[3, 0:64]`."""
    range: str
    remark: str


@dataclass(frozen=True)
class _Whole:
    """A weight that the other run holds in parts."""

    side: str
    name: str
    parts: tuple[_Part, ...]

    @property
    def pattern(self) -> tuple[object, ...]:
        """The same in all layers."""
        places = tuple((_NUMBER.sub("*", part.name), part.word, part.range, part.remark) for part in self.parts)
        return self.side, _NUMBER.sub("*", self.name), places


def describe_weights(observables: Observables, counterparts: Counterparts) -> list[str]:
    """A few lines; none where both runs hold the same weights under the same names."""
    pairs = [
        pair
        for pair in (*observables.gradients, *_iter_frozen_pieces(observables, counterparts))
        if pair.reference.parameter and pair.candidate.parameter
    ]
    lines = [*_word_wholes(_find_wholes(pairs)), *_word_overlaps(pairs), *_word_unparted(pairs, counterparts.steps)]
    left = len(lines) - _MAX_LINES
    return lines if left <= 1 else [*lines[:_MAX_LINES], f"weights: {left} more lines like these are not shown"]


def _iter_frozen_pieces(observables: Observables, counterparts: Counterparts) -> Iterator[GradientPair]:
    """Of weights that get no gradient: a step without a backward."""
    paired = {value for pair in observables.gradients for value in (pair.reference, pair.candidate)}
    lone = {
        side: [
            value
            for value in step.leaves
            if value.parameter and value.gradient is None and value not in paired
            if not counterparts.exists(side, value)
        ]
        for side, step in counterparts.steps.items()
    }
    for value, partner, piece in pair_pieces(lone["reference"], lone["candidate"]):
        yield GradientPair(value, partner, 0.0, places=piece.places)


# -- in parts ----------------------------------------------------------------------------------------------------------


def _find_wholes(pairs: Sequence[GradientPair]) -> list[_Whole]:
    found: dict[tuple[str, TrueValue], list[tuple[int, _Part]]] = {}
    for pair in pairs:
        if pair.places is None:
            continue
        is_reference_smaller = pair.reference.array.size < pair.candidate.array.size
        part, whole = (pair.reference, pair.candidate) if is_reference_smaller else (pair.candidate, pair.reference)
        side = "candidate" if is_reference_smaller else "reference"
        placed = _place_part(part, whole.array.shape, pair.places)
        found.setdefault((side, whole), []).append((int(pair.places.min()), placed))
    wholes = []
    for (side, whole), parts in found.items():
        ordered = [part for _, part in sorted(parts, key=lambda one: one[0])]
        wholes.append(_Whole(side, whole.parameter or "", tuple(ordered)))
    return wholes


def _word_overlaps(pairs: Sequence[GradientPair]) -> Iterator[str]:
    groups: list[tuple[set[str], set[str]]] = []
    for pair in (pair for pair in pairs if pair.overlap is not None):
        names = {pair.reference.parameter or ""}, {pair.candidate.parameter or ""}
        for group in [one for one in groups if names[0] & one[0] or names[1] & one[1]]:
            groups.remove(group)
            names = names[0] | group[0], names[1] | group[1]
        groups.append(names)
    if groups:
        first, second = (_list_few(sorted(side)) for side in groups[0])
        more = f"; {len(groups) - 1} more like this" if groups[1:] else ""
        yield (
            f"weights: {first} of the reference are the same rows as {second} of the candidate, split differently{more}"
        )


def _place_part(part: TrueValue, shape: tuple[int, ...], places: Array) -> _Part:
    name = part.parameter or ""
    remark = _describe_order(part.array.shape, places)
    found = np.unravel_index(places, shape)
    box = [(int(axis.min()), int(axis.max())) for axis in found]
    if np.prod([last - first + 1 for first, last in box]) != places.size:
        return _Part(name, "scattered", "", "")
    bounded = [axis for axis, (first, last) in enumerate(box) if (first, last) != (0, shape[axis] - 1)]
    word = {(1, 0): "elements", (2, 0): "rows", (2, 1): "columns"}.get((len(shape), bounded[0] if bounded else 0), "")
    if len(bounded) == 1 and word:
        return _Part(name, word, _spell_range(*box[bounded[0]]), remark)
    ranges = [_spell_slice(*box[axis], shape[axis]) for axis in range(max(bounded, default=-1) + 1)]
    return _Part(name, "", f"[{', '.join(ranges)}]" if ranges else "", remark)


def _describe_order(shape: tuple[int, ...], places: Array) -> str:
    if bool(np.all(np.diff(places) > 0)):
        return ""
    turned = np.moveaxis(places.reshape(shape), -1, max(len(shape) - 2, 0)).reshape(-1)
    return "transposed" if bool(np.all(np.diff(turned) > 0)) else "in a different order"


def _spell_range(first: int, last: int) -> str:
    return f"{first}–{last}" if last > first else str(first)


def _spell_slice(first: int, last: int, length: int) -> str:
    if (first, last) == (0, length - 1):
        return ":"
    return f"{first}:{last + 1}" if last > first else str(first)


def _word_wholes(wholes: Sequence[_Whole]) -> Iterator[str]:
    """One line for all layers."""
    alike: dict[tuple[object, ...], list[_Whole]] = {}
    for whole in wholes:
        alike.setdefault(whole.pattern, []).append(whole)
    for group in alike.values():
        more = f"; {len(group) - 1:,} more like this" if len(group) > 1 else ""
        yield f"weights: {_word_whole(group[0])}{more}"


def _word_whole(whole: _Whole) -> str:
    parts = whole.parts
    names = _list_few([part.name for part in parts])
    be = "is" if len(parts) == 1 else "are"
    words = {part.word for part in parts}
    holder = f"{whole.name} of the {whole.side}"
    remarks = [remark for remark in dict.fromkeys(part.remark for part in parts) if remark]
    remark = f", {' or '.join(remarks)}" if remarks else ""
    if words == {""}:
        where = f"{_list_few([f'{whole.name}{part.range}' for part in parts])} of the {whole.side}"
    elif len(words) == 1 and words != {"scattered"}:
        word = words.pop()
        is_single = len(parts) == 1 and "–" not in parts[0].range
        where = (
            f"{word.removesuffix('s') if is_single else word} {_list_few([part.range for part in parts])} of {holder}"
        )
    else:
        where = f"in {holder}"
    return f"{names} of the {other_side(whole.side)} {be} {where}{remark}"


def _list_few(words: Sequence[str]) -> str:
    if len(words) > _MAX_NAMED:
        return f"{words[0]}, {words[1]}, … {words[-1]}"
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


# -- as a whole --------------------------------------------------------------------------------------------------------


def _word_unparted(pairs: Sequence[GradientPair], steps: dict[str, TrueStep]) -> Iterator[str]:
    """What is the same number for number. Zeros and ones are the content of many weights: they tell no name."""
    unparted = [pair for pair in pairs if pair.places is None and pair.overlap is None]
    telling = [pair for pair in unparted if pair.reference.array.size and np.ptp(pair.reference.array) > 0]
    shared = {pair: line for pair in telling if (line := _word_shared(pair, steps))}
    yield from shared.values()
    others = [pair for pair in telling if pair not in shared]
    renamed = [pair for pair in others if pair.reference.parameter != pair.candidate.parameter]
    if renamed:
        names = _list_few([f"{pair.reference.parameter} is {pair.candidate.parameter}" for pair in renamed])
        yield f"weights: {_count(renamed)} a different name in the candidate: {names}"
    turned = [pair for pair in others if not is_same(pair.reference.array, pair.candidate.array, pair.tolerance)]
    if turned:
        names = _list_few([pair.candidate.parameter or "" for pair in turned])
        yield f"weights: {_count(turned)} axes in a different order in the candidate: {names}"


def _word_shared(pair: GradientPair, steps: dict[str, TrueStep]) -> str:
    """A tied weight, where the modules that share it are not the same."""
    values = {"reference": pair.reference, "candidate": pair.candidate}
    modules = {side: _find_modules(steps[side], value) for side, value in values.items()}
    if modules["reference"] == modules["candidate"] or max(map(len, modules.values())) < 2:
        return ""
    told = [f"{value.parameter} of the {side}{_word_modules(modules[side])}" for side, value in values.items()]
    return f"weights: {' is '.join(told)}"


def _word_modules(modules: Sequence[str]) -> str:
    return f" (shared by {_list_few(modules)})" if len(modules) > 1 else ""


def _find_modules(step: TrueStep, value: TrueValue) -> list[str]:
    paths = (call.module_path for call in step.users.get(value.number, ()) if call.caller is None)
    return list(dict.fromkeys(path for path in paths if path))


def _count(pairs: Sequence[GradientPair]) -> str:
    return "1 has" if len(pairs) == 1 else f"{len(pairs):,} have"
