"""What is said of each pair of calls: clean, source, entered, drift, discontinuity or propagated.

The judge goes through the paired calls in the order of execution. An input is held against what its producer was found
to have computed; a result against what the errors of the inputs explain. Where a dump does not say what produced an
input, it was computed by the own code of the module around the call, out of what went into the module and was computed
in it before; outside of modules it is data.
"""

from __future__ import annotations

from tensorprobe.compare.judge import tolerance
from tensorprobe.compare.judge.course import Course
from tensorprobe.compare.judge.module_end import ModuleEnds
from tensorprobe.compare.judge.origin import Origin, OriginFinder
from tensorprobe.compare.judge.precision import coarser_dtype
from tensorprobe.compare.judge.role import RoleGiver
from tensorprobe.compare.judge.status import MADE_ELSEWHERE, is_same_value, leave_out, leave_undefined, settle
from tensorprobe.compare.match.pairing import MAX_SUSPECTS, PairedCall
from tensorprobe.compare.measure.noise import Noise, loudest
from tensorprobe.compare.measure.statistic_measure import sees_order
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import BACKWARD, module_stem
from tensorprobe.model.undefined import is_undefined, is_undefined_result
from tensorprobe.run.call import Call
from tensorprobe.store.slot import TensorSlot
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.operation import is_a


class Judge:
    """One pass over one pair of runs."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._origins = OriginFinder(course)
        self._roles = RoleGiver(course)
        self._ends = ModuleEnds(course)

    def judge(self, pair: PairedCall) -> None:
        """Give a pair its role; the calls that it depends on have theirs already."""
        self._begin_outer(pair)
        origins = self._judge_inputs(pair)
        context_noise, is_context_bad = self._course.context(pair)
        bad_inputs = [value for value in pair.inputs if value.measurement is not None and value.is_bad]
        clean_noise = loudest([context_noise, *(value.noise for value in pair.inputs), *self._exponent_noise(pair)])
        self._judge_outputs(pair, clean_noise)
        pair.suspects = pair.suspects or next((origin.suspects for origin in origins if origin.suspects), ())
        pair.doubts = self._gather_doubts(pair)
        self._roles.decide(pair, bad_inputs, is_context_bad)
        pair.is_judged = True
        self._course.remember(pair)

    def _exponent_noise(self, pair: PairedCall) -> list[Noise]:
        """An exponential makes a relative error of the absolute error of what goes in. Beside the -1e9 of a mask the
        scores of an attention, and all their errors, are nothing; the softmax forgets the mask and keeps the scores."""
        if not is_a(word_of(pair.reference), "exponential"):
            return []
        measured = [value.measurement for value in pair.inputs if value.measurement is not None and not value.is_bad]
        return [tolerance.exponent_noise(measurement) for measurement in measured]

    def _begin_outer(self, pair: PairedCall) -> None:
        """The inputs of the modules around a call were there before it."""
        for outer in reversed(self._course.reference.nesting.ancestors(pair.reference)):
            outer_pair = self._course.reference.pair(outer)
            if outer_pair is not None:
                self._judge_inputs(outer_pair)

    def _gather_doubts(self, pair: PairedCall) -> tuple[Call, ...]:
        """The four statistics cannot see a permutation: a call without a partner may have changed what still looks
        equal."""
        found = dict.fromkeys(pair.suspects)
        for value in pair.inputs:
            if value.measurement is not None and value.measurement.basis == "statistics":
                assert isinstance(value.reference, TensorSlot) and isinstance(value.candidate, TensorSlot)
                if sees_order(value.reference, value.candidate):
                    continue
                producer = self._course.reference.pair(self._course.reference.flow.producer(value.reference))
                found.update(dict.fromkeys(producer.doubts if producer is not None else ()))
        return tuple(found)[:MAX_SUSPECTS]

    def _judge_inputs(self, pair: PairedCall) -> list[Origin]:
        if pair.is_begun:
            return []
        pair.is_begun = True
        origins = []
        for value in pair.inputs:
            if value.measurement is None:
                continue
            origin = self._origins.find(pair, value)
            self._judge_input(pair, value, origin)
            origins.append(origin)
        return origins

    def _judge_input(self, pair: PairedCall, value: ValuePair, origin: Origin) -> None:
        slot, candidate = value.reference, value.candidate
        assert isinstance(slot, TensorSlot) and isinstance(candidate, TensorSlot)
        if origin.is_undefined or slot.is_undefined or candidate.is_undefined:
            leave_undefined(value)
            return
        if self._ends.is_elsewhere(pair, value):
            leave_out(value, MADE_ELSEWHERE)
            return
        found = origin.explained
        if found is None:
            scale = tolerance.cancellation((slot, candidate), origin.natural_norm)
            rounding = tolerance.round_off(self._dtype_of(slot, candidate)) * (
                tolerance.COMPOSITE if origin.own_code_of else 1.0
            )
            found = tolerance.Explained(origin.noise.passed_on(rounding, scale, origin.gain), scale)
        settle(value, found, self._course.options, self._course.coarsest)
        if not value.is_bad or origin.is_bad:
            return
        if self._course.has_apis and pair.reference.kind == "module" and not origin.is_external:
            return  # the calls that take it are recorded too, and say more
        if origin.own_code_of is not None:
            self._blame_own_code(origin.own_code_of, pair, value)
        elif not pair.because:
            pair.role, pair.because = "entered", f"{value.slot} differs: {origin.describe_blame(value)}"
            pair.event_place = min(pair.event_place, pair.start - 1) if pair.start < pair.place else pair.event_place
            pair.suspects = origin.suspects

    def _dtype_of(self, reference: TensorSlot, candidate: TensorSlot) -> str | None:
        """Whose rounding both may have: the reference's, or the coarser one where another dtype was asked for."""
        is_asked = self._course.options.other_dtype
        return coarser_dtype(reference.dtype, candidate.dtype) if is_asked else reference.dtype

    def _blame_own_code(self, outer: PairedCall, pair: PairedCall, value: ValuePair) -> None:
        if outer.blamed_before is None:
            outer.blamed_before = f"{value.slot} to {pair.reference.name}"
            outer.event_place = min(outer.event_place, pair.start - 1)

    def _judge_outputs(self, pair: PairedCall, noise: Noise) -> None:
        call = pair.reference
        if is_undefined(pair.reference.note) or is_undefined(pair.candidate.note):
            for value in pair.outputs:
                leave_undefined(value)
            return
        gradients = [slot for slot in call.tensors if slot.is_input] if call.direction == BACKWARD else []
        if call.kind == "parameters_grad":
            gradients = self._gradients_of_module(call)
        is_composite = bool(self._course.reference.nesting.inner(call)) or (
            call.kind == "module" and not is_a(word_of(call), "contraction")
        )
        arrived = loudest(value.errors for value in pair.inputs if value.errors is not None and not value.is_bad)
        for value in pair.outputs:
            if value.measurement is None:
                continue
            slot, candidate = value.reference, value.candidate
            assert isinstance(slot, TensorSlot) and isinstance(candidate, TensorSlot)
            is_unfilled = is_undefined_result(call.prefix, call.op, call.direction, slot.slot)
            if is_unfilled or slot.is_undefined or candidate.is_undefined:
                leave_undefined(value)
                continue
            if self._ends.is_elsewhere(pair, value):
                leave_out(value, MADE_ELSEWHERE)
                continue
            passed_on = self._passed_on(pair, value)
            if passed_on is not None:
                found = passed_on
            else:
                natural = tolerance.natural_norm(call, slot, gradients)
                dtype = self._dtype_of(slot, candidate)
                found = tolerance.explain(slot, candidate, pair.match.reference, noise, natural, is_composite, dtype)
                found = found.at_least(arrived)
            settle(value, found, self._course.options, self._course.coarsest)

    def _passed_on(self, pair: PairedCall, value: ValuePair) -> tolerance.Explained | None:
        """A result that another call computed, such as what the last module of a Sequential returned."""
        assert isinstance(value.reference, TensorSlot) and isinstance(value.candidate, TensorSlot)
        producers = (
            self._course.reference.flow.producer(value.reference),
            self._course.candidate.flow.producer(value.candidate),
        )
        producer = self._course.reference.pair(producers[0])
        if (
            producer is None
            or producer is pair
            or not producer.is_judged
            or producer is not self._course.candidate.pair(producers[1])
        ):
            return None
        for found in producer.outputs:
            if found.tolerances is not None and is_same_value(found, value):
                return tolerance.Explained(found.tolerances, found.scale)
        return None

    def _gradients_of_module(self, call: Call) -> list[TensorSlot]:
        found = []
        for index in range(64):  # the calls of one module in one step; more of them make no larger norm
            stem = module_stem(call.prefix, call.path, call.op)
            behind = self._course.reference.run.by_name.get(f"{stem}.{BACKWARD}.{index}")
            if behind is None:
                break
            found += [slot for slot in behind.tensors if slot.is_input]
        return found
