"""Where the forwards of two steps part: looked for by whole values first, then by what is less certain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from tensorprobe.compare.truth.argument import Arguments
from tensorprobe.compare.truth.call_likeness import count_alike, word_of
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.elementwise import is_elementwise
from tensorprobe.compare.truth.forward_difference import ForwardExplainer, Starts
from tensorprobe.compare.truth.live import Live
from tensorprobe.compare.truth.opening import Opener, Opening
from tensorprobe.compare.truth.proportional import Proportional
from tensorprobe.compare.truth.region import add_region
from tensorprobe.compare.truth.scattered import Scattered, TrustedMoves
from tensorprobe.compare.truth.value_index import Counterparts
from tensorprobe.replay.true_step import TrueCall, TrueStep


def explain_forward(
    counterparts: Counterparts,
    starts: Starts,
    arguments: Arguments,
    inside: Mapping[str, Opener],
    gradients: Callable[[], Mapping[str, TrueStep]],
) -> tuple[list[Difference], Counterparts]:
    """Where the ways to these values part, the place that comes first, and both steps with those calls taken apart that
    had to be. If a call stands against one that does something else, what is computed inside them is looked at, too;
    then values that the other run has but for a factor, or in parts. Where both only put numbers elsewhere, each in its
    own way, what is computed of them is looked at; where that leads to one run alone, what the loss depends on, by the
    `gradients` that arrive."""
    opening = Opening(counterparts, starts, arguments, inside)
    differences, counterparts = opening.explain()
    if _is_settled(differences, counterparts):
        return opening.name(differences), counterparts
    multiples = _explain_multiples(counterparts, starts, arguments, opening.beginnings)
    if _is_settled(multiples, counterparts):
        return multiples, counterparts
    scattered = Scattered(counterparts)
    found = opening.name(differences)
    if not found or not _is_telling(found[0], scattered):
        others = ForwardExplainer(counterparts, scattered, arguments).explain(starts)
        step = counterparts.steps["candidate"]
        others.sort(key=lambda one: _rank(one, scattered))
        if others and others[0].reference is not None and others[0].candidate is not None:
            found = [replace(one, suspects=tuple(_find_movers(one.candidate, step))) for one in others]
        found = found or others
    if not any(_computes(one, scattered) for one in found[:1]):
        trusting = TrustedMoves(scattered)
        explainer = ForwardExplainer(counterparts, trusting, arguments)
        others = explainer.explain(starts)
        computing = [one for one in others if _computes(one, trusting)]
        told = [one for one in computing if one.is_called_otherwise]
        told += _find_other_function(explainer, trusting) or _find_left_out(opening.beginnings["reference"], trusting)
        told.sort(key=lambda one: one.reference.position if one.reference is not None else 0)
        found = told or found
    explainer = ForwardExplainer(counterparts, Live(scattered, gradients), arguments)
    live = explainer.explain(starts)
    if live and not live[0].is_lone and (not found or _is_refuted(found[0], live[0], explainer, scattered)):
        found = live
    return [*(add_region(one, counterparts) for one in found[:1]), *found[1:]], counterparts


def _is_refuted(one: Difference, live: Difference, explainer: ForwardExplainer, scattered: Scattered) -> bool:
    """Does the loss not depend on these calls? `live`: the first difference that leads to it. Where numbers are only
    put elsewhere it takes them as if they were in their places, and says nothing of that, unless it comes earlier."""
    if one.is_lone or one.is_given_other or _computes(one, scattered):
        return not explainer.leads_on(one) and all(_may_be_aside(side, call, scattered) for side, call in one.calls())
    values = scattered.steps["candidate"].values
    calls = one.candidate, live.candidate
    if calls[0] is None or calls[1] is None or any(values[number].is_floating for number in calls[0].outputs.values()):
        return False
    return _computes(live, scattered) and calls[1].position < calls[0].position


def _may_be_aside(side: str, call: TrueCall | None, scattered: Scattered) -> bool:
    """Are its results shaped as none of the other run is, as those of padding are? Or does it move whole numbers that
    the step was given? What is made of nothing is the program's."""
    if call is None:
        return True
    step, numbers = scattered.steps[side], set(call.inputs.values())
    made = [step.values[number] for number in call.outputs.values()]
    if any(one.is_floating for one in made):
        return not any(scattered.has_size(side, one) for one in made)
    return any(step.values[number].is_leaf for number in numbers | step.find_before(numbers))


def _is_settled(differences: Sequence[Difference], counterparts: Counterparts) -> bool:
    """Is the first of them found? Two calls that make not as many numbers (the rows of one expert, those of all) may be
    two ways to do one thing."""
    if not differences or not differences[0].is_found:
        return False
    sizes = []
    for side, step in counterparts.steps.items():
        call = differences[0].call(side)
        if call is None or differences[0].is_clear or differences[0].is_called_otherwise:
            return True
        sizes.append(sum(step.values[number].array.size for number in call.outputs.values()))
    return sizes[0] == sizes[1]


def _explain_multiples(
    counterparts: Counterparts, starts: Starts, arguments: Arguments, beginnings: Mapping[str, Sequence[TrueCall]]
) -> list[Difference]:
    """The same where values are multiples of those of the other run: then the factor is what is wrong, if it is that
    of the first difference. `beginnings`: where what differs begins, factors and all."""
    proportional = Proportional(counterparts)
    found = ForwardExplainer(counterparts, proportional, arguments).explain(starts)
    first = next(iter(found), None)
    told = None if first is None else proportional.explain(first)
    if first is not None and told is not None:
        told = proportional.find_scaling(told, beginnings) or proportional.find_scaling(first, beginnings) or told
    return [*([told or first] if first is not None else []), *found[1:]]


def _rank(one: Difference, scattered: Scattered) -> tuple[bool, bool, int]:
    """Two calls that are given nothing in common show nothing but that they come later. Numbers are chosen and put
    elsewhere in many ways: what is computed of the same, and otherwise, says more."""
    call = one.candidate
    if call is None:
        return False, False, -1
    return not _has_common(one, scattered), scattered.steps["candidate"].only_moves(call), call.position


def _has_common(one: Difference, scattered: Scattered) -> bool:
    """Are both calls given one value, or is it said what is wrong with them?"""
    if one.reference is None or one.candidate is None or one.is_clear or one.is_called_otherwise:
        return True
    values, given = scattered.steps["candidate"].values, set(one.reference.inputs.values())
    numbers = dict.fromkeys(one.candidate.inputs.values())
    return any(like.number in given for number in numbers for like in scattered.of("candidate", values[number]))


def _is_telling(one: Difference, scattered: Scattered) -> bool:
    """Do both calls do something of a kind? One that computes stands for none that moves numbers or makes zeros."""
    if _is_scattered(one, scattered) or not _has_common(one, scattered):
        return False
    if one.is_found or one.is_left_out:
        return True
    if one.reference is None or one.candidate is None:
        return False
    return one.is_inside or (
        scattered.kind_of("reference", one.reference) == scattered.kind_of("candidate", one.candidate)
    )


def _is_scattered(one: Difference, scattered: Scattered) -> bool:
    """Are all numbers that its calls make in the other run, too, only not in one call? What a mask chooses is in
    neither case told by that."""
    if one.takes_up_mask:
        return False
    for side, step in scattered.steps.items():
        call = one.call(side)
        if call is None or one.is_clear or one.is_called_otherwise:
            return False
        if not all(scattered.of(side, step.values[number]) for number in call.outputs.values()):
            return False
    return True


def _computes(one: Difference, scattered: Scattered) -> bool:
    """Is it about numbers that are computed, and not about where they are put?"""
    calls = [(side, one.call(side)) for side in scattered.steps]
    return any(call is not None and scattered.kind_of(side, call) == "computing" for side, call in calls)


def _find_other_function(explainer: ForwardExplainer, scattered: Scattered) -> list[Difference]:
    """The first calls on both sides that make of each number what the other run has nowhere. If both do the same, they
    are given other numbers: by other calls that move them, or at this place."""
    steps = scattered.steps
    calls = {
        side: next((call for call in explainer.beginnings(side) if is_elementwise(step, call)), None)
        for side, step in steps.items()
    }
    reference, candidate = calls["reference"], calls["candidate"]
    if reference is None or candidate is None:
        other = "candidate" if candidate is None else "reference"
        because = f"its result occurs nowhere in the {other}"
    elif not _do_the_same(reference, candidate):
        because = "both take the same values, but compute different things from them"
    else:
        chains = [
            _find_movers_before(call, steps[side])
            for side, call in (("reference", reference), ("candidate", candidate))
        ]
        for first, second in zip(*chains, strict=False):
            if word_of(first) != word_of(second):
                return [
                    Difference(
                        "source", first, second, "each takes different elements from the same values", is_clear=True
                    )
                ]
        because = "it gets different values"
    is_any = reference is not None or candidate is not None
    return [Difference("source", reference, candidate, because, is_clear=True)] if is_any else []


def _do_the_same(reference: TrueCall, candidate: TrueCall) -> bool:
    """Also where one of them was taken apart."""
    recorded = [(call.inside or call.name).rsplit(".", 2)[0] for call in (reference, candidate)]
    return word_of(reference) == word_of(candidate) or recorded[0] == recorded[1]


def _find_movers_before(call: TrueCall, step: TrueStep) -> Iterator[TrueCall]:
    """The calls that put the numbers together that a call of one operand takes, or change each alone, the last one
    first."""
    while True:
        makers = [step.maker(step.values[number]) for number in call.inputs.values()]
        known = [one for one in makers if one is not None and (step.only_moves(one) or is_elementwise(step, one))]
        maker = known[0] if known else None
        if maker is None or maker.position >= call.position:
            return
        yield maker
        call = maker


def _find_left_out(beginnings: Sequence[TrueCall], scattered: Scattered) -> list[Difference]:
    """The first call of the reference that computes what the candidate has nowhere, of a kind that the candidate makes
    fewer of in that module. `beginnings`: where what differs begins in the reference."""
    counts = [partial(count_alike, calls=list(scattered.steps[side].calls.values())) for side in scattered.steps]
    values = scattered.steps["reference"].values
    missing = [
        call
        for call in beginnings
        if call.inside is None
        and call.inputs  # what is made of nothing is data
        and counts[0](call) > counts[1](call)
        and not any(scattered.exists("reference", values[number]) for number in call.outputs.values())
    ]
    left_out = [Difference("source", call, None, "its result occurs nowhere in the candidate") for call in missing]
    return [one for one in left_out if _computes(one, scattered)][:1]


def _find_movers(call: TrueCall | None, step: TrueStep) -> Iterator[TrueCall]:
    """The calls after this one that only move what it gives: any of them may be meant."""
    while call is not None and step.only_moves(call):
        users = [user for number in call.outputs.values() for user in step.users.get(number, [])]
        call = users[0] if len(users) == 1 else None
        if call is not None and step.only_moves(call):
            yield call
