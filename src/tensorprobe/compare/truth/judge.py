"""Replays both steps, fits their leaves, and holds what they compute against each other, at two points."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.computed_leaf import find_computed
from tensorprobe.compare.truth.cut import find_cut
from tensorprobe.compare.truth.difference import Difference, describe_start
from tensorprobe.compare.truth.effect import Trial, add_effects, find_exchanged
from tensorprobe.compare.truth.explanation import explain_forward
from tensorprobe.compare.truth.flipped_choice import find_flipped, is_explained_by_rounding
from tensorprobe.compare.truth.forward_difference import Starts, find_lacking, find_starts
from tensorprobe.compare.truth.gradient_difference import GradientExplainer, describe_cleared
from tensorprobe.compare.truth.hidden_update import describe_hidden_updates, find_hidden_updates, find_untouched
from tensorprobe.compare.truth.joined_batch import join_batch
from tensorprobe.compare.truth.judgement import SIDES, Judgement
from tensorprobe.compare.truth.leaf import find_movable, find_replacements, pair_near_leaves
from tensorprobe.compare.truth.lending import find_borrowers, find_wanted
from tensorprobe.compare.truth.loss_scale import find_loss_scale
from tensorprobe.compare.truth.movement import measure_spread
from tensorprobe.compare.truth.observable import Observables, observe
from tensorprobe.compare.truth.replaying import Replaying
from tensorprobe.compare.truth.same_array import TOLERANCE
from tensorprobe.compare.truth.start import (
    LeafPair,
    Origins,
    pair_lone_leaves,
    pair_moved_leaves,
    pair_nearly_equal_leaves,
    pair_placed_leaves,
)
from tensorprobe.compare.truth.untaken import find_untaken
from tensorprobe.compare.truth.update import find_left_alone, pair_states, pair_updates
from tensorprobe.compare.truth.value_index import Counterparts, other_side
from tensorprobe.replay.true_step import Array, LeafKey, TrueStep
from tensorprobe.replay.true_step_builder import KEEP_VALUES, Keeping
from tensorprobe.run.step import Run

_MAX_BEHIND = 3
"""So many differences behind the first ones are looked for."""
_BLOWN_UP = 1e5
"""So many times as large may losses and gradients become at the second point: beyond it nothing but rounding is left of
what is saturated there."""
_NOT_MOVED: Mapping[str, Collection[LeafKey]] = dict.fromkeys(SIDES, ())
_KEEP_GRADIENTS: Mapping[str, Keeping] = dict.fromkeys(SIDES, Keeping(has_gradients=True))


def judge_by_truth(reference: Run, candidate: Run, origins: Origins | None = None) -> Judgement:
    """What both mean, against each other. `origins`: at a later step, where parameters differ, what those of the
    candidate are made of."""
    return _TruthJudge(reference, candidate, origins).judge()


class _TruthJudge:
    """One step of both runs."""

    def __init__(self, reference: Run, candidate: Run, origins: Origins | None) -> None:
        self._arguments = Arguments(reference, candidate)
        self._runs = {SIDES[0]: reference, SIDES[1]: candidate}
        self._replaying = {SIDES[0]: Replaying(reference.rank), SIDES[1]: Replaying(candidate.rank)}
        self._origins = origins
        self._borrowers = find_borrowers(reference, candidate)
        self._replacements: dict[str, dict[LeafKey, Array]] = {side: {} for side in SIDES}
        self._recorded: Mapping[str, TrueStep] = {}
        """Both, with the numbers that they were recorded with."""
        self._unknown_states: Collection[tuple[int, ...]] = ()
        """The shapes of what the candidate's optimizer keeps and of which the reference's has none that is alike."""

    def judge(self) -> Judgement:
        found = self._observe()
        self._recorded = found.steps
        if found.obstacle is not None:
            return found
        if not found.observables.is_equal and any(step.coverage.decisions for step in found.steps.values()):
            self._choose_anew(found)
            if found.differences:
                return found
        if not found.observables.is_equal:
            self._take_loss_scale_back(found)
        if found.observables.has_same_gradients and self._origins is None:
            self._take_hidden_updates(found)
        if (not found.observables.is_equal and not found.differences) or self._origins is not None:
            self._try_other_start(found)
        if not found.observables.is_equal and self._origins is not None:
            self._take_loss_scale_back(found)
        if found.observables.has_same_gradients and self._origins is not None:
            self._take_hidden_updates(found)
        # what is made of updated parameters comes after these
        is_first = found.observables.has_same_gradients and not found.differences
        if is_first and (self._origins is not None or not found.unequal):
            self._compare_updates(found)
        if not found.observables.is_equal and not found.differences:
            self._explain_difference(found)
        elif found.differences:
            return found
        elif found.unequal and self._origins is None:
            found.differences = [describe_start(pair, found.steps) for pair in found.unequal]
        else:
            self._look_elsewhere(found)
        return found

    def _look_elsewhere(self, found: Judgement) -> None:
        """They compute the same: do they with other parameters? Not asked where other choices might be made of them
        than those that the recorded programs can go on with."""
        chooses = any(one.chooses_anew for one in self._replaying.values())
        is_bound = chooses or any(step.is_bound for step in found.steps.values())
        if not is_bound:
            found.is_one_program = found.steps[SIDES[0]].has_same_calls(found.steps[SIDES[1]])
        if not is_bound and not found.is_one_program:  # which computes the same at every point
            self._observe_moved(found)
        if found.second_point is None and not found.is_one_program and not found.gaps:
            found.differences = find_untaken(found)
        if not is_bound and not found.differences and not found.unequal and not self._borrowers:
            found.runs_alike = self._replaying

    def _observe(self) -> Judgement:
        """With the finer value of each leaf on both sides."""
        counterparts = self._replay()
        unknown = 0
        if self._borrowers:
            computed = find_computed(counterparts, self._runs)
            self._replacements = computed.contents
            unknown = len(find_wanted(self._runs[SIDES[0]]) - computed.known)
            counterparts = self._replay() if any(self._replacements.values()) else counterparts
        finer = find_replacements(counterparts, is_start=self._origins is None)
        replaced = {side: len(one) for side, one in finer.items()}
        for side, found in finer.items():
            self._replacements[side].update(found)
        if any(finer.values()):
            counterparts = self._replay_replaced(counterparts, finer)
        return Judgement(
            observe(counterparts), counterparts, replaced=replaced, borrowers=self._borrowers, unknown=unknown
        )

    def _choose_anew(self, found: Judgement) -> None:
        """What rounding has chosen in one run, and otherwise in the other, is no mistake, and hides what is: both are
        held against each other with what they would have chosen without it. Not where a choice is wrong, or where the
        recorded program cannot go on with another one."""
        flipped = find_flipped(found.counterparts)
        if not flipped or not all(map(is_explained_by_rounding, found.steps.values())):
            return
        self._set_choosing(anew=True)
        counterparts = self._replay()
        observed = observe(counterparts)
        is_whole = all(_is_as_whole(again, found.steps[side]) for side, again in counterparts.steps.items())
        if is_whole and observed.is_equal:
            found.differences = flipped
        if is_whole and not found.differences:
            found.counterparts, found.observables = counterparts, observed
        self._set_choosing(anew=is_whole)

    def _set_choosing(self, *, anew: bool) -> None:
        for one in self._replaying.values():
            one.chooses_anew = anew

    def _try_other_start(self, found: Judgement) -> None:
        """Do both compute the same if the candidate's leaves are those of the reference? At a later step rounding has
        moved all that an update makes: what the reference holds serves both."""
        counterparts, origins = found.counterparts, self._origins
        leads_to_loss = found.steps[SIDES[1]].leads_to_loss
        unlike = (*pair_lone_leaves(counterparts), *pair_nearly_equal_leaves(counterparts))
        lone = (pair for pair in unlike if leads_to_loss(pair.candidate))
        pairs = list(lone) if origins is None else pair_moved_leaves(counterparts, origins)
        near = list(pair_near_leaves(counterparts, {pair.candidate for pair in pairs})) if origins is not None else []
        states, self._unknown_states = pair_states(counterparts) if origins is not None else ([], ())
        self._try_leaves(found, pairs, (*states, *near))
        if not found.observables.is_equal and origins is None:
            placed = pair_placed_leaves(counterparts, {pair.candidate for pair in pairs})
            more = [pair for pair in placed if leads_to_loss(pair.candidate)]
            if more:
                self._try_leaves(found, [*pairs, *more], ())

    def _try_leaves(self, found: Judgement, pairs: list[LeafPair], others: Sequence[LeafPair]) -> None:
        put = {pair.candidate.key: pair.content for pair in (*pairs, *others) if pair.candidate.key is not None}
        if not put:
            return
        again = self._replaying[SIDES[1]].replay({**self._replacements[SIDES[1]], **put})
        found.spread = measure_spread(found.steps[SIDES[1]], again)
        as_if = Counterparts(found.steps[SIDES[0]], again)
        observed = observe(as_if)
        if observed.is_equal or self._origins is not None:  # an update of the same program moves them
            self._replacements[SIDES[1]].update(put)
            found.counterparts, found.observables, found.unequal = as_if, observed, pairs

    def _take_loss_scale_back(self, found: Judgement) -> None:
        """Is the candidate's loss a multiple, so that its gradients do not vanish in a coarse dtype?"""
        scale = find_loss_scale(found.counterparts, found.observables)
        if scale is None:
            return
        replaying = self._replaying[SIDES[1]]
        replaying.loss_scale = scale
        counterparts = Counterparts(found.steps[SIDES[0]], replaying.replay(self._replacements[SIDES[1]]))
        observed = observe(counterparts)
        if observed.is_equal:
            found.counterparts, found.observables = counterparts, observed
        else:
            replaying.loss_scale = 1.0

    def _take_hidden_updates(self, found: Judgement) -> None:
        """What an optimizer made of parameters unseen is the rounding of what the other run's made of them."""
        found.differences = find_untouched(found.counterparts)
        if found.differences:
            return
        hidden = list(find_hidden_updates(found.counterparts, found.observables.gradients, self._recorded))
        found.differences = describe_hidden_updates([one for one in hidden if not one.is_near], found.steps)
        for one in hidden:
            if one.is_near and one.leaf.key is not None:
                self._replacements[one.side][one.leaf.key] = one.content
        if hidden and not found.differences:
            found.counterparts = self._replay()
            found.observables = observe(found.counterparts)

    def _compare_updates(self, found: Judgement) -> None:
        """What becomes of the parameters?"""
        found.updates = pair_updates(found.counterparts, found.observables.gradients)
        unknown = self._unknown_states
        is_told = not (unknown and found.borrowers)  # the states of a run with statistics only are those of another
        found.updates = tuple(pair for pair in found.updates if is_told and pair.candidate.array.shape not in unknown)
        differing = [pair for pair in found.updates if not pair.is_equal]
        if differing:
            starts = {SIDES[0]: [one.reference for one in differing], SIDES[1]: [one.candidate for one in differing]}
            found.differences = find_left_alone(differing, found.steps)
            if not found.differences:
                found.differences, _ = self._explain_forward(found.counterparts, starts)
            if found.is_drawn and any(one.leaf is not None for one in found.differences):
                found.differences, found.updates = [], ()  # what an optimizer takes was drawn, and not computed

    def _explain_difference(self, found: Judgement) -> None:
        whole = None if found.observables.has_same_loss else self._join_batches(found)
        if whole is not None:
            found.differences, opened = self._explain_joined(whole)
        if not found.differences:
            found.differences, opened = self._explain(found.counterparts, found.observables, _NOT_MOVED)
        elif whole is not None and whole.steps[SIDES[1]] is found.steps[SIDES[1]]:  # which can be executed again
            found.counterparts = whole
        else:
            return
        if found.observables.has_same_loss or not found.differences:
            return
        replay = partial(self._replaying[SIDES[1]].replay, self._replacements[SIDES[1]], ())
        trial = Trial(found.observables, found.steps[SIDES[1]], replay)
        found.differences = add_effects(found.differences, opened.steps, trial)
        if any(one.explains_all for one in found.differences):
            return
        first = found.differences[0]
        if not first.is_clear or first.is_lone:
            opened = self._try_to_narrow(found, opened, trial)
        if found.differences[0].is_found and not found.differences[0].explains_all:
            found.differences += self._find_behind(found, opened)

    def _try_to_narrow(self, found: Judgement, opened: Counterparts, trial: Trial) -> Counterparts:
        """Behind a difference, and beside one, what is only written otherwise looks like one. So values are exchanged,
        one after the other: where more becomes what the reference has, all else is behind it, or has no effect."""
        cut = find_cut(found.counterparts, found.observables, trial)
        first = found.differences[0]
        is_told = first.is_found and not first.is_lone
        if cut is not None and not (is_told and cut.is_behind(first, opened.steps)):
            differences, opened = self._explain_forward(found.counterparts, cut.starts)
            found.differences = add_effects(differences, opened.steps, trial) or found.differences
        return opened

    def _find_behind(self, found: Judgement, opened: Counterparts) -> list[Difference]:
        """What shows only when the differences before it are gone: with the reference's values in their places."""
        named = {one.candidate.name for one in found.differences if one.candidate is not None}
        exchanged: dict[tuple[str, str], Array] = {}
        last, behind = list(found.differences), list[Difference]()
        while len(behind) < _MAX_BEHIND:
            put = [find_exchanged(one, opened.steps) for one in last]
            if not put or not all(put):
                break
            exchanged.update(item for one in put for item in one.items())
            again = self._replaying[SIDES[1]].replay(self._replacements[SIDES[1]], (), exchanged)
            counterparts = Counterparts(found.steps[SIDES[0]], again)
            observed = observe(counterparts)
            if observed.has_same_loss:
                break
            differences, opened = self._explain(counterparts, observed, _NOT_MOVED)
            last = [one for one in differences if _is_new(one, named)][:1]
            named.update(one.candidate.name for one in last if one.candidate is not None)
            behind += last
        return behind

    def _observe_moved(self, found: Judgement) -> None:
        """The same with all parameters moved."""
        counterparts = found.counterparts
        steps = found.steps.values()
        if any(step.leads_to_loss(leaf) for step in steps for leaf in step.leaves if leaf.updated is not None):
            return  # a loss that is computed of what an update has made unseen, which does not move along
        movable, wanted = find_movable(counterparts, found.observables), counterparts.find_observed()
        moved = self._replay(movable, {side: Keeping(numbers) for side, numbers in wanted.items()})
        second = observe(moved)  # where a root of a negative number is nobody's mistake
        second = replace(second, gradients=tuple(pair for pair in second.gradients if np.isfinite(pair.error)))
        if any(step.updates_unseen for step in moved.steps.values()):  # what comes of it does not move along
            second = replace(second, ends={})
        makes_choices = any(step.coverage.decisions for step in moved.steps.values())  # and others would be right there
        is_blown_up = second.size > _BLOWN_UP * found.observables.size > 0
        if not second.is_finite or makes_choices or is_blown_up:
            return
        found.second_point = second
        if not second.is_equal:
            found.differences, _ = self._explain(self._replay(movable), second, movable)

    def _explain(
        self, counterparts: Counterparts, observed: Observables, moved: Mapping[str, Collection[LeafKey]]
    ) -> tuple[list[Difference], Counterparts]:
        """Where they part: in the forward, and if that is the same, in the gradients. A loss may be the same only as
        far as it is known: then what the first of these calls takes and gives says whether it is the forward after all.
        Besides, both steps with those calls taken apart that had to be."""
        if not observed.has_same_loss or (observed.has_same_gradients and any(observed.ends.values())):
            found, opened = self._explain_forward(counterparts, find_starts(counterparts, observed))
            if found:
                return found, opened
        cleared = describe_cleared(observed.gradients, counterparts.steps)
        if cleared is not None:
            return [cleared], counterparts
        counterparts = self._gradients if moved is _NOT_MOVED else self._replay(moved, _KEEP_GRADIENTS)
        differences = GradientExplainer(counterparts).explain(observed.gradients)
        lacking = find_lacking(differences[0], counterparts) if differences and observed.tolerance > TOLERANCE else {}
        if all(lacking.get(side) for side in SIDES):
            found, opened = self._explain_forward(counterparts, lacking)
            if found and found[0].is_found and not found[0].is_given_other:
                return found, opened
        return differences, counterparts

    def _join_batches(self, found: Judgement) -> Counterparts | None:
        """A batch that one run computes in parts, as if it did not."""
        steps = found.counterparts.steps
        joined = {side: join_batch(step, steps[other_side(side)]) for side, step in steps.items()}
        if not any(joined.values()):
            return None
        reference, candidate = (joined[side] or steps[side] for side in SIDES)
        return Counterparts(reference, candidate, tolerance=found.counterparts.tolerance)

    def _explain_joined(self, whole: Counterparts) -> tuple[list[Difference], Counterparts]:
        differences, opened = self._explain_forward(whole, {side: step.roots for side, step in whole.steps.items()})
        differences.sort(key=lambda one: not one.is_found)  # labels and losses of parts are written otherwise
        is_told = len(differences) == 1 or any(one.is_found for one in differences)
        return (differences if is_told else []), opened

    def _explain_forward(self, counterparts: Counterparts, starts: Starts) -> tuple[list[Difference], Counterparts]:
        inside = {side: one.look_inside() for side, one in self._replaying.items()}
        return explain_forward(counterparts, starts, self._arguments, inside, lambda: self._gradients.steps)

    @cached_property
    def _gradients(self) -> Counterparts:
        """With the gradients that arrive at results. Once a difference is explained nothing is replaced any more."""
        return self._replay(keeping=_KEEP_GRADIENTS)

    def _replay_replaced(self, before: Counterparts, replaced: Mapping[str, Mapping[LeafKey, Array]]) -> Counterparts:
        """With what was `replaced` since then. Where nothing was, the step is what it has been."""
        steps = [
            one.replay(self._replacements[side]) if replaced[side] else before.steps[side]
            for side, one in self._replaying.items()
        ]
        return Counterparts(steps[0], steps[1])

    def _replay(
        self, moved: Mapping[str, Collection[LeafKey]] = _NOT_MOVED, keeping: Mapping[str, Keeping] | None = None
    ) -> Counterparts:
        steps = [
            one.replay(self._replacements[side], moved[side], keeping=keeping[side] if keeping else KEEP_VALUES)
            for side, one in self._replaying.items()
        ]
        return Counterparts(steps[0], steps[1])


def _is_as_whole(again: TrueStep, before: TrueStep) -> bool:
    """Could all of its calls be executed again that could before, and have all Functions the backward of their own?"""
    has_backwards = again.coverage.own_backwards.keys() >= before.coverage.own_backwards.keys()
    return has_backwards and again.coverage.gaps.keys() <= before.coverage.gaps.keys()


def _is_new(one: Difference, named: Collection[str]) -> bool:
    """Is it one of two calls that can be told, and not told yet?"""
    return one.is_found and not one.is_backward and one.candidate is not None and one.candidate.name not in named
