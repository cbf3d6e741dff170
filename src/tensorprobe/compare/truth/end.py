"""What one run of two computes and nobody takes, and what an optimizer is given: ends of a step beside its loss."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import permutations
from typing import Protocol

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.piece import Bound, Piece, find_pieces
from tensorprobe.compare.truth.same_array import is_constant, is_laid_out, is_same, norm_of
from tensorprobe.compare.truth.scattered import Scattered
from tensorprobe.compare.truth.value_index import FINE, ROUNDED_UNITS, ZERO, Counterparts, other_side
from tensorprobe.replay.true_step import UNITS, Array, TrueStep, TrueValue

GUARD = 1e-5
"""Clipped gradients are the same to so many of their digits: what clips them adds 1e-6 to their norm in one framework,
so that nothing is divided by zero, and nothing in another."""


_MEASURING = frozenset(
    {
        *("norm", "vector_norm", "linalg_vector_norm", "square", "pow", "sqrt", "abs", "sum", "mean", "max", "min"),
        *("amax", "amin", "reducesum", "reducemean", "l2_loss", "item", "add", "mul", "div", "truediv", "stack", "cat"),
        *(
            "concat",
            "concatenate",
            "reshape",
            "view",
            "flatten",
            "ravel",
            "detach",
            "clone",
            "contiguous",
            "to",
            "cast",
        ),
        *("double", "float", "astype", "asnumpy", "numpy", "cpu", "type", "foreach_norm", "get_total_norm"),
    }
)
"""What the size of numbers is computed with."""


def find_ends(counterparts: Counterparts, *, is_training: bool) -> dict[str, list[TrueValue]]:
    """In a training step, what one side computes besides has no effect; what both do, and otherwise, may have one. What
    is kept for the next step may be kept in another order: that step shows whether it is right."""
    ends = {side: list(_find_lone_ends(side, counterparts)) for side in counterparts.steps}
    if not is_training:
        for side, other in permutations(ends, 2):
            _leave_out_joined(ends[side], ends[other], counterparts.tolerance)
        return {**ends, "reference": ends["reference"] if ends["candidate"] else []}
    kept = {side: [one for one in values if _is_kept(one, counterparts.steps[side])] for side, values in ends.items()}
    for piece in find_pieces(kept["candidate"], kept["reference"], Bound(counterparts.tolerance)):
        if piece.part.array.size == piece.whole.array.size:
            ends["candidate"].remove(piece.part)
            ends["reference"].remove(piece.whole)
    common = _keep_common(
        {
            side: [one for one in values if not _is_report(one, counterparts.steps[side])]
            for side, values in ends.items()
        }
    )
    is_in_parts = len({len(step.roots) for step in counterparts.steps.values()}) > 1
    if not is_in_parts or not any(common.values()):
        return common
    scattered = Scattered(counterparts)
    return {
        side: [one for one in values if not (_has_constant(one, ends[other_side(side)]) or scattered.of(side, one))]
        for side, values in common.items()
    }


def _leave_out_joined(parts: list[TrueValue], wholes: list[TrueValue], tolerance: float) -> None:
    """What one run computes of a batch in parts, and the other at once, is the same."""
    found: dict[TrueValue, list[Piece]] = {}
    for piece in find_pieces(parts, wholes, Bound(tolerance)):
        if np.all(np.diff(piece.places) > 0):  # in the same order
            found.setdefault(piece.whole, []).append(piece)
    for whole, pieces in found.items():
        is_covered = np.zeros(whole.array.size, dtype=bool)
        for piece in pieces:
            is_covered[piece.places] = True
        if is_covered.all() and sum(piece.part.array.size for piece in pieces) == whole.array.size:
            wholes.remove(whole)
            for piece in pieces:
                parts.remove(piece.part)


def _has_constant(value: TrueValue, others: Sequence[TrueValue]) -> bool:
    """Is it full of one number, and one of these, too?"""
    constants = (one.array.flat[0] for one in (value, *others) if one.array.size and is_constant(one.array))
    return is_constant(value.array) and value.array.size > 0 and next(constants) in list(constants)


def _is_report(end: TrueValue, step: TrueStep) -> bool:
    """Is it a single number that says how large gradients or parameters are? Where nobody takes it, it is only looked
    at, and they are compared themselves."""
    waiting, seen = [end] if end.array.size == 1 else [], set[int]()
    while waiting:
        value = waiting.pop()
        if value.is_gradient or value.is_trained or value.updated is not None or value.number in seen:
            continue
        seen.add(value.number)
        maker = step.maker(value)
        if maker is None or not maker.inputs or word_of(maker) not in _MEASURING:
            return False
        waiting += [step.values[number] for number in maker.inputs.values()]
    return end.array.size == 1


def _keep_common(ends: Mapping[str, Sequence[TrueValue]]) -> dict[str, list[TrueValue]]:
    """Those of which both runs have some with so many numbers."""
    sizes = set.intersection(*({value.array.size for value in values} for values in ends.values()))
    return {side: [value for value in values if value.array.size in sizes] for side, values in ends.items()}


class ParameterPair(Protocol):
    """A parameter of both runs, or a part of one."""

    @property
    def reference(self) -> TrueValue: ...

    @property
    def candidate(self) -> TrueValue: ...


def find_given(counterparts: Counterparts, pairs: Sequence[ParameterPair]) -> dict[str, list[TrueValue]]:
    """What an optimizer that is one compiled call is given, such as clipped gradients, if the other run makes no such
    thing of its gradients. What is made of one that is zero in exact arithmetic is nothing but rounding."""
    found: dict[str, list[TrueValue]] = {side: [] for side in counterparts.steps}
    for side, step in counterparts.steps.items():
        others = find_made_of_gradients(counterparts.steps[other_side(side)]) if step.updates_unseen else []
        given = find_given_to_optimizers(step) if others else []
        least = ZERO * max((norm_of(one.array) for one in given), default=0.0)
        lone = [one for one in given if not one.is_leaf and norm_of(one.array) > least]
        lone = [one for one in lone if not counterparts.exists(side, one)]
        sizes = [(other, norm_of(other.array)) for other in others if lone]
        lone = [one for one in lone if not _is_nearly_among(one, sizes)]
        bound = Bound(max(counterparts.tolerance, GUARD))
        known = {piece.part for piece in find_pieces(lone, others, bound)}
        found[side] += [one for one in lone if one not in known and not _is_joined(one, side, pairs, sizes)]
    return found


def _is_joined(
    value: TrueValue, side: str, pairs: Sequence[ParameterPair], others: Sequence[tuple[TrueValue, float]]
) -> bool:
    """Is it the gradient of a parameter that the other run holds in parts, or a multiple of it that the other run makes
    of those of all parts? `others`: what that makes of its gradients, with their norms."""
    wholes: dict[int, tuple[Array, list[Array]]] = {}
    for pair in pairs:
        own, part = (pair.reference, pair.candidate) if side == "reference" else (pair.candidate, pair.reference)
        if own.gradient is not None and part.gradient is not None and own.array.size == value.array.size:
            wholes.setdefault(own.number, (own.gradient.reshape(-1), []))[1].append(part.gradient)
    numbers = value.array.reshape(-1)
    for whole, parts in wholes.values():
        size = float(whole @ whole)
        factor = float(numbers @ whole) / size if size else 0.0
        if factor and len(parts) > 1 and _is_near(numbers, factor * whole):
            made = (factor * part for part in parts)
            least = ZERO * float(np.linalg.norm(numbers))
            return all(norm_of(part) <= least or _has_near(part, others) for part in made)
    return False


def _has_near(array: Array, others: Sequence[tuple[TrueValue, float]]) -> bool:
    norm = norm_of(array)
    near = (one.array for one, size in others if one.array.size == array.size and abs(size - norm) <= 2 * GUARD * norm)
    return any(
        _is_near(one.reshape(-1), array.reshape(-1)) or is_laid_out(one, array, GUARD, allows_square=True)
        for one in near
    )


def _is_near(first: Array, second: Array) -> bool:
    return norm_of(first - second) <= GUARD * norm_of(second)


def find_given_to_optimizers(step: TrueStep) -> list[TrueValue]:
    """Of gradients, and what is made of them."""
    taken = _find_taken_by_optimizers(step)
    return [one for one in find_made_of_gradients(step) if one.number in taken]


def _find_taken_by_optimizers(step: TrueStep) -> set[int]:
    return {number for call in step.calls.values() if call.caller is not None for number in call.inputs.values()}


def find_made_of_gradients(step: TrueStep) -> list[TrueValue]:
    """The gradients that later calls take, what an optimizer has made of them unseen, and what comes of both."""
    come = {value.number for value in step.leaves if value.is_gradient or value.updated is not None}
    for call in step.calls.values():
        if not come.isdisjoint(call.inputs.values()):
            come.update(call.outputs.values())
    return [step.values[number] for number in sorted(come) if step.values[number].is_floating]


def leave_out_made(ends: Mapping[str, Sequence[TrueValue]], counterparts: Counterparts) -> dict[str, list[TrueValue]]:
    """Those that are not made of gradients."""
    made = {side: {one.number for one in find_made_of_gradients(step)} for side, step in counterparts.steps.items()}
    return _keep_common(
        {side: [one for one in values if one.number not in made[side]] for side, values in ends.items()}
    )


def _is_nearly_among(value: TrueValue, others: Sequence[tuple[TrueValue, float]]) -> bool:
    """`others`: with their norms."""
    own = norm_of(value.array)
    near = (other.array for other, norm in others if abs(norm - own) <= 2 * GUARD * own)
    return any(
        is_same(value.array, one, GUARD) or is_laid_out(value.array, one, GUARD, allows_square=True) for one in near
    )


def _is_kept(end: TrueValue, step: TrueStep) -> bool:
    """Is it made of data of its own size?"""
    before = (step.values[number] for number in step.find_before({end.number}))
    return any(
        one.is_leaf and one.is_floating and not one.is_trained and one.array.size == end.array.size for one in before
    )


def _find_lone_ends(side: str, counterparts: Counterparts) -> Iterator[TrueValue]:
    """What nobody takes, and the other run has not. A step without a backward is for this. What becomes of parameters
    that have gradients is another question (those of a network that is only moved along have none), and so is what a
    compiled optimizer is given, of which no number comes."""
    step = counterparts.steps[side]
    taken = _find_taken_by_optimizers(step)
    learning = {leaf.parameter for leaf in step.leaves if leaf.gradient is not None}
    unlike = {leaf.number for leaf in step.leaves if leaf.parameter and not counterparts.exists(side, leaf)}
    lone_data = _find_lone_data(side, counterparts)
    for value in step.values:
        maker = step.maker(value)
        is_own = maker is not None and maker.caller is None and not value.is_pinned and value.number not in taken
        is_own = is_own and not (value.is_trained and (value.parameter is None or value.parameter in learning))
        is_lone = is_own and step.is_end(value) and not counterparts.exists(side, value)
        is_lone = is_lone and not _is_rounded(value, side, counterparts, lone_data)
        # at a later step rounding has moved what such parameters start from
        if is_lone and (not value.is_trained or unlike.isdisjoint(step.find_before({value.number}))):
            yield value


def _find_lone_data(side: str, counterparts: Counterparts) -> dict[int, float]:
    """Data that the other run has not, with the units that its numbers are rounded by."""
    data = (leaf for leaf in counterparts.steps[side].leaves if leaf.is_floating)
    data = (leaf for leaf in data if not (leaf.is_trained or leaf.is_gradient))
    units = {leaf.number: UNITS.get(leaf.dtype, 1.0) for leaf in data if not counterparts.exists(side, leaf)}
    return {number: unit for number, unit in units.items() if unit < FINE}


def _is_rounded(value: TrueValue, side: str, counterparts: Counterparts, lone_data: Mapping[int, float]) -> bool:
    """Is it what the other run has, but for a number that the program wrote down in its own precision? Where that leads
    to the loss, all is compared so."""
    before = counterparts.steps[side].find_before({value.number}) if lone_data else ()
    unit = max((unit for number, unit in lone_data.items() if number in before), default=0.0)
    return unit > 0 and counterparts.has_near(side, value, ROUNDED_UNITS * unit)
