"""What a step is for: its loss, the gradients of its parameters, and what nobody takes. Two steps that agree in these
mean the same, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.piece import Bound, Piece, find_pieces, pair_pieces
from tensorprobe.compare.truth.same_array import TOLERANCE, is_constant, is_laid_out, is_same, permutations
from tensorprobe.compare.truth.start import Origin
from tensorprobe.compare.truth.value_index import FINE, ROUNDED_UNITS, ZERO, Counterparts, other_side
from tensorprobe.replay.true_step import UNITS, Array, TrueStep, TrueValue

GUARD = 1e-5
"""Clipped gradients are the same to so many of their digits: what clips them adds 1e-6 to their norm in one framework,
so that nothing is divided by zero, and nothing in another."""


@dataclass(frozen=True, eq=False)
class GradientPair:
    """The gradients of one parameter in both runs; None where none reaches it."""

    reference: TrueValue
    candidate: TrueValue
    error: float
    """Of the difference, relative to the gradient; 0 where both are zero in exact arithmetic."""
    tolerance: float = TOLERANCE
    places: Array | None = None
    """Where the elements of the smaller one are in the larger one (those of the reference in the candidate's, if they
    are of one size), unless they lie there in the order of the axes."""

    def find_origin(self, name: str) -> Origin | None:
        """Where the numbers of the candidate's are in the reference, where it has this name."""
        first, second = self.reference.array, self.candidate.array
        numbers = np.arange(first.size)
        if self.places is not None and first.size <= second.size:
            return Origin(name, numbers, self.places)
        if self.places is not None:
            return Origin(name, self.places, np.arange(second.size))
        order = arrange(first, second, numbers.reshape(first.shape), self.tolerance)
        return None if order is None else Origin(name, order.reshape(-1), numbers)

    @property
    def has_gradient(self) -> bool:
        """Of two parameters without one, as where there is no backward, or where one is lost, nothing is shown."""
        if self.reference.is_gradient_lost or self.candidate.is_gradient_lost:
            return False
        return self.reference.gradient is not None or self.candidate.gradient is not None

    @property
    def is_equal(self) -> bool:
        return self.error <= self.tolerance

    @property
    def name(self) -> str:
        return self.reference.parameter or self.candidate.parameter or self.reference.slot


@dataclass(frozen=True)
class Observables:
    """Both runs, held against each other by what they are for."""

    losses: tuple[tuple[TrueValue, TrueValue], ...]
    gradients: tuple[GradientPair, ...]
    unpaired: Mapping[str, Sequence[TrueValue]]
    """Of each side: parameters that the other has not, or not as one."""
    ends: Mapping[str, Sequence[TrueValue]]
    """Of each side: values that nobody takes and that the other has not."""
    reference_total: float
    candidate_total: float
    """The sum over all losses."""
    tolerance: float = TOLERANCE

    @property
    def unpaired_gradients(self) -> list[TrueValue]:
        """Such parameters of the reference, as far as they get a gradient."""
        return [value for value in self.unpaired["reference"] if value.gradient is not None]

    @property
    def loss_error(self) -> float:
        """The difference of the losses, relative to their size."""
        if not self.losses:
            return 0.0
        scale = max(abs(self.reference_total), abs(self.candidate_total))
        difference = abs(self.reference_total - self.candidate_total)
        if np.isnan(self.reference_total) and np.isnan(self.candidate_total):
            return 0.0
        return float(difference / scale) if scale else 0.0

    @property
    def is_finite(self) -> bool:
        return bool(np.isfinite(self.reference_total) and np.isfinite(self.candidate_total))

    @property
    def has_same_loss(self) -> bool:
        return self.loss_error <= self.tolerance

    @property
    def size(self) -> float:
        """Of the largest gradient, or of the loss."""
        both = (one.gradient for pair in self.gradients for one in (pair.reference, pair.candidate))
        norms = [float(np.linalg.norm(one)) for one in both if one is not None]
        return max((abs(self.reference_total), *(norm for norm in norms if np.isfinite(norm))))

    @property
    def worst_gradient(self) -> float:
        return max((pair.error for pair in self.gradients), default=0.0)

    @property
    def is_equal(self) -> bool:
        return self.has_same_gradients and not any(self.ends.values())

    @property
    def has_same_gradients(self) -> bool:
        return self.has_same_loss and all(pair.is_equal for pair in self.gradients)


def observe(counterparts: Counterparts) -> Observables:
    """The observables of both, paired."""
    reference, candidate = counterparts.steps["reference"], counterparts.steps["candidate"]
    roots = reference.roots, candidate.roots
    totals = [
        float(sum(value.array.sum() for value in step.roots)) / step.loss_scale for step in (reference, candidate)
    ]
    pairs, unpaired = pair_gradients(counterparts)
    ends = _find_ends(counterparts, is_training=bool(roots[0] and roots[1]))
    if all(pair.is_equal for pair in pairs):
        given = _find_given(counterparts)
        ends = given if any(given.values()) else ends
    else:  # of other gradients all that is made of them is another
        ends = _keep_common({side: _leave_out_made(ends[side], step) for side, step in counterparts.steps.items()})
    losses = tuple(zip(*roots, strict=False))
    tolerance = counterparts.tolerance
    return Observables(losses, tuple(pairs), unpaired, ends, totals[0], totals[1], tolerance)


def _find_ends(counterparts: Counterparts, *, is_training: bool) -> dict[str, list[TrueValue]]:
    """In a training step, what one side computes besides has no effect; what both do, and otherwise, may have one. What
    is kept for the next step may be kept in another order: that step shows whether it is right."""
    ends = {side: list(_find_lone_ends(side, counterparts)) for side in counterparts.steps}
    if not is_training:
        return {**ends, "reference": ends["reference"] if ends["candidate"] else []}
    kept = {side: [one for one in values if _is_kept(one, counterparts.steps[side])] for side, values in ends.items()}
    for piece in find_pieces(kept["candidate"], kept["reference"], Bound(counterparts.tolerance)):
        if piece.part.array.size == piece.whole.array.size:
            ends["candidate"].remove(piece.part)
            ends["reference"].remove(piece.whole)
    return _keep_common(ends)


def _keep_common(ends: Mapping[str, Sequence[TrueValue]]) -> dict[str, list[TrueValue]]:
    """Those of which both runs have some with so many numbers."""
    sizes = set.intersection(*({value.array.size for value in values} for values in ends.values()))
    return {side: [value for value in values if value.array.size in sizes] for side, values in ends.items()}


def _find_given(counterparts: Counterparts) -> dict[str, list[TrueValue]]:
    """What an optimizer that is one compiled call is given, such as clipped gradients, if the other run makes no such
    thing of its gradients."""
    found: dict[str, list[TrueValue]] = {side: [] for side in counterparts.steps}
    for side, step in counterparts.steps.items():
        others = find_made_of_gradients(counterparts.steps[other_side(side)]) if step.updates_unseen else []
        given = find_given_to_optimizers(step) if others else []
        lone = [one for one in given if not one.is_leaf and not counterparts.exists(side, one)]
        sizes = [(other, _norm_of(other.array)) for other in others if lone]
        lone = [one for one in lone if not _is_nearly_among(one, sizes)]
        known = {piece.part for piece in find_pieces(lone, others, Bound(max(counterparts.tolerance, GUARD)))}
        found[side] += [one for one in lone if one not in known]
    return found


def find_given_to_optimizers(step: TrueStep) -> list[TrueValue]:
    """Of gradients, and what is made of them."""
    taken = {number for call in step.calls.values() if call.caller is not None for number in call.inputs.values()}
    return [one for one in find_made_of_gradients(step) if one.number in taken]


def find_made_of_gradients(step: TrueStep) -> list[TrueValue]:
    """The gradients that later calls take, what an optimizer has made of them unseen, and what comes of both."""
    come = {value.number for value in step.leaves if value.is_gradient or value.updated is not None}
    for call in step.calls.values():
        if not come.isdisjoint(call.inputs.values()):
            come.update(call.outputs.values())
    return [step.values[number] for number in sorted(come) if step.values[number].is_floating]


def _leave_out_made(ends: Sequence[TrueValue], step: TrueStep) -> list[TrueValue]:
    made = {one.number for one in find_made_of_gradients(step)}
    return [one for one in ends if one.number not in made]


def _is_nearly_among(value: TrueValue, others: Sequence[tuple[TrueValue, float]]) -> bool:
    """`others`: with their norms."""
    own = _norm_of(value.array)
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
    that have gradients is another question: those of a network that is only moved along have none."""
    step = counterparts.steps[side]
    learning = {leaf.parameter for leaf in step.leaves if leaf.gradient is not None}
    unlike = {leaf.number for leaf in step.leaves if leaf.parameter and not counterparts.exists(side, leaf)}
    for value in step.values:
        maker = step.maker(value)
        is_own = maker is not None and maker.caller is None and not value.is_pinned
        is_own = is_own and not (value.is_trained and (value.parameter is None or value.parameter in learning))
        is_lone = is_own and step.is_end(value) and not counterparts.exists(side, value)
        is_lone = is_lone and not _is_rounded(value, side, counterparts)
        # at a later step rounding has moved what such parameters start from
        if is_lone and (not value.is_trained or unlike.isdisjoint(step.find_before({value.number}))):
            yield value


def _is_rounded(value: TrueValue, side: str, counterparts: Counterparts) -> bool:
    """Is it what the other run has, but for a number that the program wrote down in its own precision? Where that leads
    to the loss, all is compared so."""
    step, other = counterparts.steps[side], counterparts.steps[other_side(side)]
    before = step.find_before({value.number})
    data = [leaf for leaf in step.leaves if leaf.number in before and not (leaf.is_trained or leaf.is_gradient)]
    units = [UNITS.get(leaf.dtype, 1.0) for leaf in data if leaf.is_floating and not counterparts.exists(side, leaf)]
    fine = [unit for unit in units if unit < FINE]
    return bool(fine) and any(
        is_same(one.array, value.array, ROUNDED_UNITS * max(fine))
        for one in other.values
        if one.is_floating and one.array.shape == value.array.shape
    )


def pair_gradients(counterparts: Counterparts) -> tuple[list[GradientPair], dict[str, list[TrueValue]]]:
    """The leaves that get a gradient on either side, each with the leaf of the other run that has its content, or that
    it is a piece of; and those of each side that are none of these."""
    reference, candidate = counterparts.steps["reference"], counterparts.steps["candidate"]
    gradients = [value.gradient for step in (reference, candidate) for value in step.leaves]
    largest = max((float(np.linalg.norm(found)) for found in gradients if found is not None), default=0.0)
    known_gradients = _KnownGradients(counterparts)
    pairs = _pair_leaves(counterparts, known_gradients, largest)
    paired = {pair.reference.number for pair in pairs}, {pair.candidate.number for pair in pairs}
    lone, others = (
        [one for one in step.leaves if (one.gradient is not None or one.is_trained) and one.number not in known]
        for step, known in zip((reference, candidate), paired, strict=True)
    )
    found: tuple[set[int], set[int]] = set(), set()
    for value, partner, piece in pair_pieces(lone, others):
        error, tolerance = _piece_error(piece, largest), counterparts.gradient_tolerance([value], [partner])
        pair = GradientPair(value, partner, error, tolerance, piece.places)
        if pair.is_equal or known_gradients.tell(value, partner):
            found[0].add(value.number)
            found[1].add(partner.number)
            pairs += [pair] if pair.has_gradient else []
    return pairs, {
        "reference": [value for value in lone if value.number not in found[0]],
        "candidate": [value for value in others if value.number not in found[1]],
    }


def _pair_leaves(counterparts: Counterparts, known: _KnownGradients, largest: float) -> list[GradientPair]:
    """Leaves of the same content. Many have one content, zeros or ones: those with the same gradient belong together;
    what is left then is paired by its name and place."""
    found: dict[int, GradientPair] = {}
    taken: set[int] = set()
    waiting = list(counterparts.steps["reference"].leaves)
    sizes = _GradientSizes(counterparts, ZERO * largest)
    for has_same_gradient in (True, False):
        left = []
        for value in waiting:
            near = sizes.find_near(value) if has_same_gradient else None
            partners = [
                one
                for one in counterparts.of("reference", value)
                if one.is_leaf and one.number not in taken and (near is None or one.number in near)
            ]
            for partner in sorted(partners, key=lambda one: _distance(value, one)):
                if any(
                    one.gradient is None and not (one.is_trained and other.is_trained)
                    for one, other in ((value, partner), (partner, value))
                ):
                    continue
                error = _gradient_error(value, partner, largest, counterparts.tolerance)
                pair = GradientPair(value, partner, error, counterparts.gradient_tolerance([value], [partner]))
                if pair.is_equal or (not has_same_gradient and known.tell(value, partner)):
                    found[value.number] = pair
                    taken.add(partner.number)
                    break
            else:
                left.append(value)
        waiting = left
    return [found[number] for number in sorted(found)]


def find_held_otherwise(counterparts: Counterparts, observed: Observables) -> dict[str, list[TrueValue]]:
    """The parameters of each side that the other has not, but has the gradients of: it holds them in another form, as
    the sum of two biases. And those whose gradients are zero, or which get none."""
    known = _KnownGradients(counterparts)
    return {side: [one for one in lone if known.has(other_side(side), one)] for side, lone in observed.unpaired.items()}


class _KnownGradients:
    """The gradients of all leaves of both runs."""

    def __init__(self, counterparts: Counterparts) -> None:
        self._counterparts = counterparts
        self._leaves = {
            side: [(leaf, _norm_of(leaf.gradient)) for leaf in step.leaves if leaf.gradient is not None]
            for side, step in counterparts.steps.items()
        }
        self._floor = ZERO * max((norm for found in self._leaves.values() for _, norm in found), default=0.0)

    def has(self, side: str, value: TrueValue) -> bool:
        """Is the gradient of this value of the other run that of some leaf of this one, or zero?"""
        gradient = value.gradient
        norm = _norm_of(gradient)
        if gradient is None or not np.isfinite(gradient).all() or norm <= self._floor:
            return True
        for leaf, other in self._leaves[side]:
            if leaf.gradient is not None and leaf.gradient.size == gradient.size:
                pair = (leaf, value) if side == "reference" else (value, leaf)
                tolerance = self._counterparts.gradient_tolerance(pair[:1], pair[1:])
                if abs(norm - other) > tolerance * gradient.size**0.5 * max(norm, other):
                    continue  # no element need be looked at
                is_turned = is_laid_out(gradient, leaf.gradient, tolerance, allows_square=True)
                if is_turned or is_same(gradient, leaf.gradient, tolerance):
                    return True
        return False

    def tell(self, reference: TrueValue, candidate: TrueValue) -> bool:
        """Are two leaves of the same content one parameter, although their gradients differ? Zeros are everywhere: not
        if they have no more in common than that, and the gradient of one belongs to another in the other run."""
        is_named = reference.parameter is not None and reference.parameter == candidate.parameter
        smaller = min(reference, candidate, key=lambda one: one.array.size)
        if is_named or not is_constant(smaller.array):
            return True
        return not self.has("candidate", reference) and not self.has("reference", candidate)


class _GradientSizes:
    """The norms of the gradients of all leaves: where they differ, the gradients do. A deep model has hundreds of
    leaves of one content."""

    def __init__(self, counterparts: Counterparts, floor: float) -> None:
        self._floor = floor
        self._tolerance = counterparts.tolerance
        self._rounded = {side: step.gradient_rounding for side, step in counterparts.steps.items()}
        leaves = list(counterparts.steps["candidate"].leaves)
        self._numbers = np.array([leaf.number for leaf in leaves], dtype=np.int64)
        self._norms = np.array([_norm_of(leaf.gradient) for leaf in leaves])
        self._is_open = ~np.isfinite(self._norms)
        self._is_open |= np.isin(self._numbers, list(self._rounded["candidate"]))

    def find_near(self, value: TrueValue) -> Set[int] | None:
        """The leaves of the candidate whose gradients may be that of this one of the reference; None if any may."""
        norm = _norm_of(value.gradient)
        if not np.isfinite(norm) or value.number in self._rounded["reference"]:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            room = np.maximum(self._floor, 2 * self._tolerance * np.maximum(self._norms, norm))
            is_near = self._is_open | (np.abs(self._norms - norm) <= room)
        return set(self._numbers[is_near].tolist())


def _norm_of(gradient: Array | None) -> float:
    return 0.0 if gradient is None else float(np.linalg.norm(gradient))


def _piece_error(piece: Piece, largest: float) -> float:
    return _distance_of(*piece.gradients, ZERO * largest)


def _distance(value: TrueValue, other: TrueValue) -> tuple[bool, bool, bool, int]:
    """Among several of one content: the one of the same name, with a gradient as this has, in the same shape."""
    is_named = value.parameter is not None and value.parameter == other.parameter
    has_gradient = (value.gradient is None) == (other.gradient is None)
    return not is_named, not has_gradient, value.array.shape != other.array.shape, other.number


def _gradient_error(value: TrueValue, partner: TrueValue, largest: float, tolerance: float) -> float:
    first, second = value.gradient, partner.gradient
    floor = ZERO * largest
    if value.is_gradient_lost or partner.is_gradient_lost:
        return 0.0
    if first is None or second is None:
        present = first if first is not None else second
        return 1.0 if present is not None and float(np.linalg.norm(present)) > floor else 0.0
    arranged = arrange(partner.array, value.array, second, tolerance)
    if arranged is None:
        return 1.0
    return _distance_of(first.reshape(-1), arranged.reshape(-1), floor)


def _distance_of(first: Array, second: Array, floor: float) -> float:
    """Relative to their size; what is smaller than `floor` is zero in exact arithmetic. NaN is equal to NaN, and
    infinitely far from any number."""
    with np.errstate(invalid="ignore", over="ignore"):
        is_equal = (first == second) | (np.isnan(first) & np.isnan(second))
        difference = float(np.linalg.norm(np.where(is_equal, 0.0, first - second)))
        if np.isnan(difference):
            return np.inf
        if difference <= floor:
            return 0.0
        scale = max(float(np.linalg.norm(np.nan_to_num(one))) for one in (first, second))
    return difference / scale if scale else 0.0


def arrange(array: Array, target: Array, gradient: Array, tolerance: float = TOLERANCE) -> Array | None:
    """The gradient in the order of elements that makes `array` to `target`."""
    if gradient.shape != array.shape:
        gradient = gradient.reshape(array.shape) if gradient.size == array.size else gradient
    if is_same(array, target, tolerance):
        return gradient
    for axes in permutations(array):
        if is_same(np.transpose(array, axes), target, tolerance):
            return np.ascontiguousarray(np.transpose(gradient, axes))
    for axes in permutations(target):
        if is_same(np.transpose(target, axes), array, tolerance):
            return np.ascontiguousarray(
                np.transpose(gradient.reshape(np.transpose(target, axes).shape), np.argsort(axes))
            )
    return None
