"""The leaves of two runs that are the same numbers, rounded otherwise: the finer one serves both.

Two runs of other precision start from other numbers, and a table that one run reads is computed by the other. Where the
coarser value is the rounding of the finer one, the finer one is what both mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import numpy as np

from tensorprobe.compare.truth.observable import Observables, find_held_otherwise
from tensorprobe.compare.truth.piece import Bound, find_pieces, may_share, turn
from tensorprobe.compare.truth.same_array import is_constant, permutations
from tensorprobe.compare.truth.start import LeafPair
from tensorprobe.compare.truth.value_index import FINE, Counterparts, other_side
from tensorprobe.replay.true_step import LEAST, UNITS, Array, LeafKey, TrueStep, TrueValue

_SLACK = 2.0
_MOVED_UNITS = (8.0, 64.0, 1024.0)
_MOST_MOVED = 0.05
"""By so many roundings, and by no more than this in any dtype, updates move the numbers of two states of one value
apart; those that are nearly zero more than others."""
_USUAL = 10.0
"""So many times one of the smallest numbers of a table is what its rounding is measured by."""
_COMPUTED = 3e-6
"""A table that the other run computes may be off by more than one rounding: by so much at most."""
_DRAWN_UNITS = 4.0
"""Parameters that both runs draw may be: one has multiplied them before they were rounded, the other behind it."""


def find_replacements(counterparts: Counterparts, *, is_start: bool) -> dict[str, dict[LeafKey, Array]]:
    """For each side, the leaves that take the value of the other one. `is_start`: no step was compared before."""
    found: dict[str, dict[LeafKey, Array]] = {"reference": {}, "candidate": {}}
    is_other = _find_lone(counterparts)
    for side, step in counterparts.steps.items():
        others = counterparts.steps[other_side(side)]
        by_size: dict[int, list[TrueValue]] = {}
        for value in others.values:
            maker = others.maker(value)
            is_program = maker is None or (maker.caller is None and value.parameter is None)
            # an update moves by less than rounding
            if value.is_floating and is_program and others.leads_to_loss(value):
                by_size.setdefault(value.array.size, []).append(value)
        leaves = [value for value in others.leaves if value.is_floating]
        prepared = [value for value in _iter_prepared(others) if value.is_floating and others.leads_to_loss(value)]
        for leaf in step.leaves:
            is_lone = leaf.is_floating and is_other(side, leaf)
            is_state = leaf.parameter is None and not step.leads_to_loss(leaf)
            if is_lone and (leaf.array.size > 1 or leaf.is_trained or is_state):
                finer = _find_finer(leaf, by_size.get(leaf.array.size, []))
                lone = (one for one in by_size.get(leaf.array.size, []) if is_other(other_side(side), one))
                content = _find_same_table(leaf, lone, is_start=is_start)
                if content is not None and side == "reference":
                    continue  # which serves both
                content = content if finer is None or content is not None else finer.array
                content = content.reshape(leaf.array.shape) if content is not None else None
                if content is None and leaf.array.size > 1:
                    content = _find_turned(leaf, by_size.get(leaf.array.size, []))
                if content is None and (leaf.array.size > 1 or is_state):
                    content = _assemble_finer(leaf, leaves)
                if content is None:
                    content = _assemble_prepared(leaf, prepared)
                if content is not None and leaf.key is not None:
                    found[side][leaf.key] = content
    return found


def _find_finer(leaf: TrueValue, others: Sequence[TrueValue]) -> TrueValue | None:
    """What a leaf is the rounding of. A single number may be that of another one by chance: that of the same name comes
    first, and several have to be one number."""
    found = (one for one in others if is_rounding_of(leaf, one))
    if leaf.array.size > 1:
        return next(found, None)
    trained = [one for one in found if one.is_trained]
    named = [one for one in others if one.is_trained and leaf.parameter is not None and one.parameter == leaf.parameter]
    if named:
        return next((one for one in named if one in trained), None)
    return trained[0] if len({one.array.item() for one in trained}) == 1 else None


def find_movable(counterparts: Counterparts, observed: Observables) -> dict[str, set[LeafKey]]:
    """For each side, the leaves that stand for other numbers at a second point: parameters, unless something that is no
    parameter has the same content in either run, and the loss depends on it, or unless the other run holds them in
    another form, which would not move as they do (so it may be where each has some that the other has not), or unless
    some of their numbers are zero for good."""
    lone = {side: [one for one in values if one.gradient is not None] for side, values in observed.unpaired.items()}
    held = lone if all(lone.values()) else find_held_otherwise(counterparts, observed)
    fixed = {side: {value.number for value in values} for side, values in held.items()}
    for side, step in counterparts.steps.items():
        data = [leaf for leaf in step.leaves if not leaf.is_trained and step.leads_to_loss(leaf)]
        contents = {leaf.array.tobytes() for leaf in data}  # a slow copy of the weights
        fixed[side].update(leaf.number for leaf in step.leaves if leaf.is_trained and leaf.array.tobytes() in contents)
        fixed[side].update(leaf.number for leaf in step.leaves if _has_idle_zeros(leaf))
        others = {one.number: one for leaf in data for one in counterparts.of(side, leaf)}
        fixed[other_side(side)].update(others)
        for other in others.values():
            if other.is_leaf:
                fixed[side].update(one.number for one in counterparts.of(other_side(side), other))
    for pair in observed.gradients:  # also of pieces
        if pair.reference.number in fixed["reference"] or pair.candidate.number in fixed["candidate"]:
            fixed["reference"].add(pair.reference.number)
            fixed["candidate"].add(pair.candidate.number)
    return {
        side: {leaf.key for leaf in step.leaves if leaf.key and leaf.is_trained and leaf.number not in fixed[side]}
        for side, step in counterparts.steps.items()
    }


def _has_idle_zeros(leaf: TrueValue) -> bool:
    """Do some of its numbers stay zero, as what stands for padding in a table: does no gradient come to them?"""
    if leaf.gradient is None or leaf.gradient.size != leaf.array.size or is_constant(leaf.array):
        return False
    return bool(((leaf.array.reshape(-1) == 0) & (leaf.gradient.reshape(-1) == 0)).any())


def pair_near_leaves(counterparts: Counterparts, known: Collection[TrueValue]) -> Iterator[LeafPair]:
    """At a later step: what is no parameter with a gradient, besides `known`, and differs by a few roundings, such as a
    slow copy of the weights. No mistake is so small."""
    reference, candidate = counterparts.steps["reference"], counterparts.steps["candidate"]
    is_other = _find_lone(counterparts)
    others = [one for one in reference.leaves if one.is_floating and is_other("reference", one)]
    for leaf in candidate.leaves:
        unit = UNITS.get(leaf.dtype)
        is_known = leaf in known or leaf.is_gradient or leaf.updated is not None
        if unit is None or is_known or not is_other("candidate", leaf):
            continue
        bounds = [Bound(min(units * unit, _MOST_MOVED)) for units in (0.0, *_MOVED_UNITS)]  # a copy may be near as well
        near = [one for one in others if may_share(leaf, one, bounds[-1])]
        found = (_assemble(leaf, near, bound) for bound in bounds)
        content = next((one for one in found if one is not None), None)
        if content is None:
            content = _find_nearest(leaf, others, bounds[-1].relative)
        if content is not None and not np.array_equal(content, leaf.array):
            yield LeafPair(others[0], leaf, content, tuple(others))


def _find_lone(counterparts: Counterparts) -> Callable[[str, TrueValue], bool]:
    """Has the other run no such numbers? Tables that it has not have made the comparison so coarse that they would seem
    to be there."""
    lone = set(counterparts.lone_tables)
    return lambda side, leaf: leaf in lone or not counterparts.exists(side, leaf)


def _find_turned(leaf: TrueValue, others: Sequence[TrueValue]) -> Array | None:
    """What a leaf is the rounding of, with the axes of either in another order."""
    for one in (other for other in others if other.is_leaf):
        for axes in permutations(one.array):
            turned = replace(one, array=np.transpose(one.array, axes))
            if is_rounding_of(leaf, turned):
                return turned.array.reshape(leaf.array.shape)
        for axes in permutations(leaf.array):
            turned = replace(leaf, array=np.transpose(leaf.array, axes))
            if is_rounding_of(turned, one):
                return np.transpose(one.array.reshape(turned.array.shape), np.argsort(axes))
    return None


def _assemble_finer(leaf: TrueValue, others: Sequence[TrueValue]) -> Array | None:
    unit = UNITS.get(leaf.dtype)
    better = [one for one in others if unit is not None and UNITS.get(one.dtype, 1.0) < unit]
    if unit is None or not better:
        return None
    bound = _rounding_bound(leaf.dtype, unit)
    return _find_constant(leaf, better, bound) if is_constant(leaf.array) else _assemble(leaf, better, bound)


def _iter_prepared(step: TrueStep) -> Iterator[TrueValue]:
    """What a step computes of data alone."""
    learnt = {leaf.number for leaf in step.leaves if leaf.is_trained or leaf.is_gradient or leaf.parameter is not None}
    for call in sorted(step.calls.values(), key=lambda call: call.position):
        if not learnt.isdisjoint(call.inputs.values()):
            learnt.update(call.outputs.values())
    return (value for value in step.values if not value.is_leaf and value.number not in learnt)


def _assemble_prepared(leaf: TrueValue, others: Sequence[TrueValue]) -> Array | None:
    """Data that the other run computes in parts, as for each half of a batch."""
    is_data = not (leaf.is_trained or leaf.is_gradient or is_constant(leaf.array))
    if not is_data or UNITS.get(leaf.dtype, 1.0) > FINE or not np.isfinite(leaf.array).all():
        return None
    parts = [one for one in others if one.array.size < leaf.array.size and np.isfinite(one.array).all()]
    bound = Bound(_COMPUTED, _COMPUTED * _find_usual(leaf.array))
    return _assemble(leaf, parts, bound) if parts else None


def _find_constant(leaf: TrueValue, others: Sequence[TrueValue], bound: Bound) -> Array | None:
    """What an optimizer begins with: one number, of which the other run may hold more or fewer."""
    number = leaf.array.reshape(-1)[:1]
    numbers = {one.array.flat[0] for one in others if one.array.size > 1 and is_constant(one.array)}
    near = [one for one in numbers if abs(one - number[0]) <= bound.around(number)[0]]
    return np.full_like(leaf.array, near[0]) if len(near) == 1 else _assemble(leaf, others, bound)


def _assemble(leaf: TrueValue, others: Sequence[TrueValue], bound: Bound) -> Array | None:
    """A leaf that the other run holds in pieces, or as a piece of a larger one, from these."""
    whole = next(find_pieces([leaf], others, bound), None)
    if whole is not None:
        return whole.whole.array.reshape(-1)[whole.places].reshape(leaf.array.shape)
    content, is_known = leaf.array.reshape(-1).copy(), np.zeros(leaf.array.size, dtype=bool)
    for piece in find_pieces(others, [leaf], bound):
        content[piece.places] = piece.part.array.reshape(-1)
        is_known[piece.places] = True
    return content.reshape(leaf.array.shape) if is_known.all() else None


def _find_nearest(leaf: TrueValue, others: Sequence[TrueValue], bound: float) -> Array | None:
    """A result of the step before, as a whole: in a sum, what is nearly zero keeps none of its digits."""
    shaped = [one.array for one in others if one.array.size == leaf.array.size]
    contents = [order.reshape(leaf.array.shape) for array in shaped for order in turn(array)]
    distances = [float(np.linalg.norm(one - leaf.array)) for one in contents]
    nearest = min(range(len(distances)), key=distances.__getitem__, default=None)
    is_found = nearest is not None and distances[nearest] <= bound * float(np.linalg.norm(leaf.array))
    return contents[nearest] if nearest is not None and is_found else None


def _rounding_bound(dtype: str, unit: float) -> Bound:
    return Bound(_SLACK * unit, max(LEAST.get(dtype, 0.0), 1e-38))


def _find_same_table(leaf: TrueValue, others: Iterable[TrueValue], *, is_start: bool) -> Array | None:
    """The same numbers as the other program wrote them down: each as it computed them. Those of parameters only at the
    start, where they were drawn: later an update may have moved them by as little."""
    unit = UNITS.get(leaf.dtype, 1.0)
    is_told = is_start and not is_constant(leaf.array) if leaf.is_trained else True
    if not leaf.is_leaf or leaf.is_gradient or unit > _COMPUTED or leaf.array.size < 2 or not is_told:
        return None
    room = _DRAWN_UNITS * unit if leaf.is_trained else _COMPUTED
    first, least = leaf.array.flat[0], 2 * room * float(np.abs(leaf.array).max())
    for other in others:
        is_alike = other.is_leaf and not other.is_gradient and other.is_trained == leaf.is_trained
        may_be = first == other.array.flat[0] or not abs(first - other.array.flat[0]) > least
        if is_alike and may_be and other.dtype == leaf.dtype:
            arrays = turn(other.array) if leaf.is_trained else [other.array]
            found = (one for one in arrays if _are_near(leaf.array.reshape(-1), one.reshape(-1), room))
            content = next(found, None)
            if content is not None:
                return content
    return None


def _are_near(first: Array, second: Array, room: float) -> bool:
    with np.errstate(invalid="ignore", over="ignore"):
        usual = min(_find_usual(first), _find_usual(second))
        near = np.abs(first - second) <= room * np.maximum(np.abs(second), usual)
        return bool(np.all((np.isfinite(second) & near) | (first == second)))


def _find_usual(array: Array) -> float:
    """How large its numbers are: what a mask puts in the place of minus infinity is larger than all that it leaves."""
    sizes = np.sort(np.abs(array[np.isfinite(array) & (array != 0)]))
    return min(_USUAL * float(sizes[len(sizes) // int(_USUAL)]), float(sizes[-1])) if sizes.size else 0.0


def is_rounding_of(leaf: TrueValue, finer: TrueValue) -> bool:
    """Is this leaf what rounding to its dtype makes of the other value?"""
    unit, other = UNITS.get(leaf.dtype), UNITS.get(finer.dtype)
    if unit is None or other is None or (finer.is_leaf and other >= unit):
        return False
    bound = _SLACK * unit if finer.is_leaf else max(_SLACK * unit, _COMPUTED if unit < FINE else 0.0)
    first, second = leaf.array.reshape(-1), finer.array.reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        difference, size, is_finite = np.abs(first - second), np.abs(second), np.isfinite(second)
        scale = size if finer.is_leaf else size[is_finite].max(initial=0.0)
        allowed = Bound(bound, max(LEAST.get(leaf.dtype, 0.0), 1e-38)).around(scale)
        is_near = is_finite & (difference <= allowed)  # what is infinite is near to nothing else
        return bool(np.all(is_near | (first == second)))
