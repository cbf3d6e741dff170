"""What a step is for: its loss, the gradients of its parameters, and what nobody takes. Two steps that agree in these
mean the same, whatever happens in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from tensorprobe.compare.truth.end import find_ends, find_given, leave_out_made
from tensorprobe.compare.truth.piece import Overlap, Piece, pair_overlaps, pair_pieces
from tensorprobe.compare.truth.same_array import TOLERANCE, is_constant, is_laid_out, is_same, norm_of, permutations
from tensorprobe.compare.truth.start import Origin
from tensorprobe.compare.truth.value_index import ZERO, Counterparts, other_side
from tensorprobe.replay.true_step import Array, TrueStep, TrueValue

_NOTHING = np.zeros(1, dtype=bool)


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
    overlap: tuple[Array, Array] | None = None
    """Where the elements that are in both lie in each, if neither holds all of the other."""

    def find_origin(self, name: str) -> Origin | None:
        """Where the numbers of the candidate's are in the reference, where it has this name."""
        first, second = self.reference.array, self.candidate.array
        numbers = np.arange(first.size)
        if self.overlap is not None:
            return Origin(name, *self.overlap)
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
    ends = find_ends(counterparts, is_training=bool(roots[0] and roots[1]))
    if all(pair.is_equal for pair in pairs):
        given = find_given(counterparts, pairs)
        ends = given if any(given.values()) else ends
    else:  # of other gradients all that is made of them is another
        ends = leave_out_made(ends, counterparts)
    losses = tuple(zip(*roots, strict=False))
    tolerance = counterparts.tolerance
    return Observables(losses, tuple(pairs), unpaired, ends, totals[0], totals[1], tolerance)


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
    known: dict[int, Array] = {}
    for value, partner, piece in pair_pieces(lone, others):
        error, tolerance = _piece_error(piece, largest), counterparts.gradient_tolerance([value], [partner])
        pair = GradientPair(value, partner, error, tolerance, piece.places)
        if pair.is_equal or known_gradients.tell(value, partner):
            found[0].add(value.number)
            found[1].add(partner.number)
            known[id(piece.part)] = np.ones(piece.part.array.size, dtype=bool)
            known.setdefault(id(piece.whole), np.zeros(piece.whole.array.size, dtype=bool))[piece.places] = True
            is_still = value.gradient is None and partner.gradient is None  # as those of a target network
            pairs += [pair] if pair.has_gradient or is_still else []
    left = [
        [one for one in values if one.gradient is not None and not known.get(id(one), _NOTHING).all()]
        for values in (lone, others)
    ]
    for overlap in pair_overlaps(left[0], left[1], known):
        value, partner = overlap.reference, overlap.candidate
        error, tolerance = _piece_error(overlap, largest), counterparts.gradient_tolerance([value], [partner])
        found[0].add(value.number)
        found[1].add(partner.number)
        pair = GradientPair(value, partner, error, tolerance, overlap=overlap.places)
        pairs += [pair] if pair.has_gradient else []
    return pairs, {
        "reference": [value for value in lone if value.number not in found[0]],
        "candidate": [value for value in others if value.number not in found[1]],
    }


def _pair_leaves(counterparts: Counterparts, known: _KnownGradients, largest: float) -> list[GradientPair]:
    """Leaves of the same content. Many have one content, zeros or ones: those with the same gradient belong together;
    what is left then is paired by its name and place; at last, what is a parameter in one run and data in the other."""
    found: dict[int, GradientPair] = {}
    taken: set[int] = set()
    waiting = list(counterparts.steps["reference"].leaves)
    sizes = _GradientSizes(counterparts, ZERO * largest)
    steps = counterparts.steps["reference"], counterparts.steps["candidate"]
    for has_same_gradient, is_lost in ((True, False), (False, False), (False, True)):
        left = []
        for value in waiting:
            near = sizes.find_near(value) if has_same_gradient else None
            partners = [
                one
                for one in counterparts.of("reference", value)
                if one.is_leaf and one.number not in taken and (near is None or one.number in near)
            ]
            for partner in sorted(partners, key=lambda one: _distance(value, one)):
                given = [(one, step) for one, step in zip((value, partner), steps, strict=True) if one.gradient is None]
                is_data = bool(given) and not (value.is_trained and partner.is_trained)
                is_parameter = any(one.is_trained and one.gradient is not None for one in (value, partner))
                if is_data and not (is_lost and is_parameter and _is_cut_off(*given[0])):
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


def _is_cut_off(value: TrueValue, step: TrueStep) -> bool:
    """Does this run compute its loss from the numbers of a parameter, and follow no gradients to them?"""
    is_told = value.is_floating and value.parameter is None and not is_constant(value.array)
    return is_told and not value.is_followed and not value.is_gradient_lost and step.leads_to_loss(value)


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
            side: [(leaf, norm_of(leaf.gradient)) for leaf in step.leaves if leaf.gradient is not None]
            for side, step in counterparts.steps.items()
        }
        self._floor = ZERO * max((norm for found in self._leaves.values() for _, norm in found), default=0.0)

    def has(self, side: str, value: TrueValue) -> bool:
        """Is the gradient of this value of the other run that of some leaf of this one, or zero?"""
        gradient = value.gradient
        norm = norm_of(gradient)
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
        self._norms = np.array([norm_of(leaf.gradient) for leaf in leaves])
        self._is_open = ~np.isfinite(self._norms)
        self._is_open |= np.isin(self._numbers, list(self._rounded["candidate"]))

    def find_near(self, value: TrueValue) -> Set[int] | None:
        """The leaves of the candidate whose gradients may be that of this one of the reference; None if any may."""
        norm = norm_of(value.gradient)
        if not np.isfinite(norm) or value.number in self._rounded["reference"]:
            return None
        with np.errstate(invalid="ignore", over="ignore"):
            room = np.maximum(self._floor, 2 * self._tolerance * np.maximum(self._norms, norm))
            is_near = self._is_open | (np.abs(self._norms - norm) <= room)
        return set(self._numbers[is_near].tolist())


def _piece_error(piece: Piece | Overlap, largest: float) -> float:
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
