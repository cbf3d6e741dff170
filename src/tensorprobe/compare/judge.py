"""What is said of each pair of calls: clean, source, entered, drift, discontinuity or propagated.

The judge goes through the paired calls in the order of execution. An input is held against what its producer was found
to have computed; a result against what the errors of the inputs explain. Where a dump does not say what produced an
input, it was computed by the own code of the module around the call, out of what went into the module and was computed
in it before; outside of modules it is data.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tensorprobe.compare import tolerance
from tensorprobe.compare.argument import show_argument
from tensorprobe.compare.call import BACKWARD, FORWARD, Call
from tensorprobe.compare.noise import GAIN, SILENCE, Noise, loudest
from tensorprobe.compare.operation import is_a
from tensorprobe.compare.option import CompareOptions
from tensorprobe.compare.pairing import MAX_SUSPECTS, PairedCall, RunSide
from tensorprobe.compare.precision import short_dtype, unit_roundoff
from tensorprobe.compare.result import Role, ValuePair
from tensorprobe.store.slot import TensorSlot

UNDEFINED_MEMORY = "undefined memory"
STRUCTURE_ONLY = "no values were recorded"
STEP_GAIN = 1000.0
"""From the errors of one step to those of the parameters in the next: an optimizer that divides by the size of the
gradient (Adam) moves an element whose gradient is only noise by the full learning rate, in either direction."""


@dataclass(slots=True)
class Origin:
    """What an input was computed from."""

    noise: Noise = SILENCE
    """The largest error of it."""
    is_bad: bool = False
    """Some of it differs: the difference comes from there."""
    explained: tolerance.Explained | None = None
    """The value was judged already, as the result of this call; this is what was found."""
    blame: str = ""
    """Should the value differ: what to say, if it is not from there."""
    own_code_of: PairedCall | None = None
    """Should the value differ: the module whose own code computed it."""
    suspects: tuple[Call, ...] = ()
    is_external: bool = False
    """It came from outside what was recorded: data, a parameter, a buffer."""
    is_undefined: bool = False
    natural_norm: float | None = None
    gain: float = GAIN


class Judge:
    """One pass over one pair of runs."""

    def __init__(
        self, reference: RunSide, candidate: RunSide, options: CompareOptions, start_noise: Noise = SILENCE
    ) -> None:
        self._reference = reference
        self._candidate = candidate
        self._options = options
        self._start_noise = start_noise
        self.worst_noise = start_noise
        """The largest error so far of what still agrees."""
        self.is_any_bad = False
        self._has_apis = any(call.kind == "api" and call.caller is None for call in reference.run.calls)

    # ------------------------------------------------------------------------------------------------ one call

    def judge(self, pair: PairedCall) -> None:
        """Give a pair its role; the calls that it depends on have theirs already."""
        self._begin_outer(pair)
        origins = self._judge_inputs(pair)
        context_noise, is_context_bad = self._context(pair)
        bad_inputs = [value for value in pair.inputs if value.measurement is not None and value.is_bad]
        clean_noise = loudest([context_noise, *(value.noise for value in pair.inputs)])
        self._judge_outputs(pair, clean_noise)
        pair.suspects = pair.suspects or next((origin.suspects for origin in origins if origin.suspects), ())
        pair.doubts = self._gather_doubts(pair)
        self._decide(pair, bad_inputs, is_context_bad)
        pair.is_judged = True
        self._remember(pair)

    def _begin_outer(self, pair: PairedCall) -> None:
        """The inputs of the modules around a call were there before it."""
        for outer in reversed(self._reference.nesting.ancestors(pair.reference)):
            outer_pair = self._reference.pair(outer)
            if outer_pair is not None:
                self._judge_inputs(outer_pair)

    def _gather_doubts(self, pair: PairedCall) -> tuple[Call, ...]:
        """Statistics cannot see a permutation: a call without a partner may have changed what still looks equal."""
        found = dict.fromkeys(pair.suspects)
        for value in pair.inputs:
            if value.measurement is not None and value.measurement.basis == "statistics":
                assert isinstance(value.reference, TensorSlot)
                producer = self._reference.pair(self._reference.flow.producer(value.reference))
                found.update(dict.fromkeys(producer.doubts if producer is not None else ()))
        return tuple(found)[:MAX_SUSPECTS]

    def _remember(self, pair: PairedCall) -> None:
        is_bad = pair.is_bad or pair.role in ("source", "entered")
        noise = loudest(value.noise for value in pair.values)
        if not pair.is_framework_made:
            self.is_any_bad = self.is_any_bad or is_bad
            self.worst_noise = loudest((self.worst_noise, noise))
        outer = self._reference.pair(self._reference.nesting.parent(pair.reference))
        if outer is not None and outer is not pair:
            outer.inner_noise = loudest((outer.inner_noise, noise))
            outer.is_inside_bad = outer.is_inside_bad or is_bad or pair.role != "clean"

    def _context(self, pair: PairedCall) -> tuple[Noise, bool]:
        """What else goes in: for a backward call its forward, for a gradient of parameters all calls of the module."""
        call = pair.reference
        if call.kind == "parameters_grad":
            return self.worst_noise, self.is_any_bad
        noise, is_bad = pair.inner_noise, False
        forward = self._reference.pair(self._reference.flow.forward_of(call))
        if forward is not None and forward.is_judged:
            noise = loudest([noise, *(value.noise for value in forward.values)])
            is_bad = any(value.is_bad for value in forward.values)
        return noise, is_bad

    def _has_other_seed(self) -> bool:
        """Were the runs seeded differently, or is nothing known of that?"""
        seeds = []
        for side in (self._reference, self._candidate):
            settings = side.run.rank.run.get("settings")
            seeds.append(settings.get("torch_seed") if isinstance(settings, dict) else None)
        return None in seeds or seeds[0] != seeds[1]

    # ------------------------------------------------------------------------------------------------ inputs

    def _judge_inputs(self, pair: PairedCall) -> list[Origin]:
        if pair.is_begun:
            return []
        pair.is_begun = True
        origins = []
        for value in pair.inputs:
            if value.measurement is None:
                continue
            origin = self._origin(pair, value)
            self._judge_input(pair, value, origin)
            origins.append(origin)
        return origins

    def _judge_input(self, pair: PairedCall, value: ValuePair, origin: Origin) -> None:
        slot, candidate = value.reference, value.candidate
        assert isinstance(slot, TensorSlot) and isinstance(candidate, TensorSlot)
        if origin.is_undefined:
            value.status, value.reason, value.is_mismatch = "not comparable", UNDEFINED_MEMORY, False
            return
        found = origin.explained
        if found is None:
            scale = tolerance.cancellation((slot, candidate), origin.natural_norm)
            rounding = tolerance.round_off(slot.dtype) * (tolerance.COMPOSITE if origin.own_code_of else 1.0)
            found = tolerance.Explained(origin.noise.passed_on(rounding, scale, origin.gain), scale)
        self._settle(value, found)
        if not value.is_bad or origin.is_bad:
            return
        if self._has_apis and pair.reference.kind == "module" and not origin.is_external:
            return  # the calls that take it are recorded too, and say more
        if origin.own_code_of is not None:
            self._blame_own_code(origin.own_code_of, pair, value)
        elif not pair.because:
            pair.role, pair.because = "entered", f"{value.slot} differs: {origin.blame}"
            pair.event_place = min(pair.event_place, pair.start - 1) if pair.start < pair.place else pair.event_place
            pair.suspects = origin.suspects

    def _blame_own_code(self, outer: PairedCall, pair: PairedCall, value: ValuePair) -> None:
        if outer.blamed_before is None:
            outer.blamed_before = f"{value.slot} of {pair.reference.name}"
            outer.event_place = min(outer.event_place, pair.start - 1)

    def _origin(self, pair: PairedCall, value: ValuePair) -> Origin:
        reference, candidate = value.reference, value.candidate
        assert isinstance(reference, TensorSlot) and isinstance(candidate, TensorSlot)
        producers = (self._reference.flow.producer(reference), self._candidate.flow.producer(candidate))
        pairs = (self._reference.pair(producers[0]), self._candidate.pair(producers[1]))
        if pairs[0] is not None and pairs[0] is pairs[1]:
            return self._produced(pairs[0], value) if pairs[0].is_judged else self._unknown(pair, value)
        if producers[0] is None and producers[1] is None:
            return self._unknown(pair, value)
        rewired = self._rewired(*producers)
        outer = self._outer(pair)
        if pair.reference.kind == "module" and outer is not None:  # the module around it has put it there
            own_code = self._own_code(outer)
            own_code.is_bad, own_code.suspects = own_code.is_bad or rewired.is_bad, rewired.suspects
            return own_code
        return rewired

    def _produced(self, producer: PairedCall, value: ValuePair) -> Origin:
        """Both sides took it from the same pair of calls."""
        outputs = [found for found in producer.outputs if found.measurement is not None]
        same = [found for found in outputs if _is_same_value(found, value)]
        blame = f"what {producer.reference.name} returned agrees, but it was changed before this call"
        origin = Origin(is_bad=any(found.is_bad for found in same or outputs), blame=blame)
        origin.is_undefined = any(found.reason == UNDEFINED_MEMORY for found in outputs)
        if same:
            if same[0].tolerances is not None:
                origin.explained = tolerance.Explained(same[0].tolerances, same[0].scale)
            origin.noise = same[0].noise
        else:
            origin.noise = loudest(found.noise for found in outputs)
        return origin

    def _rewired(self, reference: Call | None, candidate: Call | None) -> Origin:
        """The two sides took it from different places."""
        sides = ((self._reference, reference), (self._candidate, candidate))
        is_bad = any(producer is not None and side.is_tainted(producer) for side, producer in sides)
        suspects = self._reference.suspects(reference) + self._candidate.suspects(candidate)
        return Origin(
            noise=self.worst_noise,
            is_bad=is_bad,
            suspects=suspects,
            blame=_describe_rewiring(reference, candidate, suspects),
        )

    def _unknown(self, pair: PairedCall, value: ValuePair) -> Origin:
        """No record says where it came from."""
        if _is_parameter(value):
            kind, _, name = value.slot.partition(".")
            what = {"parameters": f"the parameter {name}", "buffers": f"the buffer {name}"}.get(kind, "it")
            blame = f"{what} was not the same before the call"
            return Origin(noise=self._start_noise, gain=STEP_GAIN, is_external=True, blame=blame)
        gathered = self._accumulated(pair) if pair.reference.kind == "api" else None
        if gathered is not None:
            return gathered
        outer = self._outer(pair)
        if outer is not None:
            return self._own_code(outer)
        what = "the gradient that came in from outside" if pair.reference.direction == BACKWARD else "the data"
        return Origin(
            noise=self.worst_noise,
            gain=STEP_GAIN if _is_leaf(value) else GAIN,
            is_bad=self.is_any_bad,
            is_external=True,
            blame=f"no recorded call computed it: {what} is not the same",
        )

    def _outer(self, pair: PairedCall) -> PairedCall | None:
        """The module call around a call, if both runs have it."""
        outer = self._reference.pair(self._reference.nesting.parent(pair.reference))
        is_same = outer is self._candidate.pair(self._candidate.nesting.parent(pair.candidate))
        return outer if is_same else None

    def _own_code(self, outer: PairedCall) -> Origin:
        context_noise, is_context_bad = self._context(outer)
        inputs = [value for value in outer.inputs if value.measurement is not None]
        gradients = [value.reference for value in inputs if isinstance(value.reference, TensorSlot)]
        return Origin(
            noise=loudest([context_noise, *(value.noise for value in inputs)]),
            is_bad=is_context_bad or outer.is_inside_bad or any(value.is_bad for value in inputs),
            own_code_of=outer,
            natural_norm=tolerance.largest_norm(gradients) if outer.reference.direction == BACKWARD else None,
        )

    def _accumulated(self, pair: PairedCall) -> Origin | None:
        """A gradient that is the sum of several: of those that came back from all uses of the forward's result."""
        if pair.reference.direction != BACKWARD:
            return None
        parts = self._reference.flow.contributions(pair.reference)
        if not parts:
            return None
        values = []
        for call, slot in parts:
            behind = self._reference.pair(call)
            if behind is None or not behind.is_judged:
                return Origin(noise=self.worst_noise, is_bad=self.is_any_bad, blame=f"{call.name} has no partner")
            values += [value for value in behind.outputs if value.slot == slot.slot]
        # One part alone would have been named as its source: something that was not recorded was added, or changed it.
        is_sum = len(parts) > 1
        return Origin(
            noise=loudest(value.noise for value in values) if is_sum else self.worst_noise,
            is_bad=any(value.is_bad for value in values) or (not is_sum and self.is_any_bad),
            blame="the gradients that it is the sum of agree, but it was changed on its way (a hook?)",
            natural_norm=tolerance.largest_norm(slot for _, slot in parts),
        )

    # ------------------------------------------------------------------------------------------------ results

    def _judge_outputs(self, pair: PairedCall, noise: Noise) -> None:
        call = pair.reference
        if UNDEFINED_MEMORY in (pair.reference.note, pair.candidate.note):
            for value in pair.outputs:
                value.status, value.reason, value.is_mismatch = "not comparable", UNDEFINED_MEMORY, False
            return
        gradients = [slot for slot in call.tensors if slot.is_input]
        if call.kind == "parameters_grad":
            gradients = self._gradients_of_module(call)
        is_composite = bool(self._reference.nesting.inner(call)) or (
            call.kind == "module" and not is_a(call.op, "contraction")
        )
        for value in pair.outputs:
            if value.measurement is None:
                continue
            slot, candidate = value.reference, value.candidate
            assert isinstance(slot, TensorSlot) and isinstance(candidate, TensorSlot)
            passed_on = self._passed_on(pair, value)
            if passed_on is not None:
                found = passed_on
            else:
                natural = tolerance.natural_norm(call, slot, gradients)
                found = tolerance.explain(slot, candidate, pair.match.reference, noise, natural, is_composite)
            self._settle(value, found)

    def _suspect_results(self, pair: PairedCall, bad_outputs: list[ValuePair]) -> None:
        """A module may return what a call without a partner computed."""
        for value in bad_outputs:
            for side, slot in ((self._reference, value.reference), (self._candidate, value.candidate)):
                producer = side.flow.producer(slot) if isinstance(slot, TensorSlot) else None
                if producer is not None and not pair.suspects:
                    pair.suspects = side.suspects(producer)

    def _passed_on(self, pair: PairedCall, value: ValuePair) -> tolerance.Explained | None:
        """A result that another call computed, such as what the last module of a Sequential returned."""
        assert isinstance(value.reference, TensorSlot) and isinstance(value.candidate, TensorSlot)
        producers = (self._reference.flow.producer(value.reference), self._candidate.flow.producer(value.candidate))
        producer = self._reference.pair(producers[0])
        if (
            producer is None
            or producer is pair
            or not producer.is_judged
            or producer is not self._candidate.pair(producers[1])
        ):
            return None
        for found in producer.outputs:
            if found.tolerances is not None and _is_same_value(found, value):
                return tolerance.Explained(found.tolerances, found.scale)
        return None

    def _gradients_of_module(self, call: Call) -> list[TensorSlot]:
        found = []
        for index in range(64):  # the calls of one module in one step; more of them make no larger norm
            stem = f"{call.prefix}.{call.path}.{call.op}" if call.path else f"{call.prefix}.{call.op}"
            behind = self._reference.run.by_name.get(f"{stem}.{BACKWARD}.{index}")
            if behind is None:
                break
            found += [slot for slot in behind.tensors if slot.is_input]
        return found

    def _settle(self, value: ValuePair, explained: tolerance.Explained) -> None:
        """The status of one pair of tensors, against what is explained."""
        measurement = value.measurement
        assert measurement is not None
        if measurement.problem is not None:
            value.status, value.reason = "not comparable", value.reason or measurement.problem
            return
        if measurement.basis == "structure" and measurement.is_equal is None:
            value.status, value.reason = "not comparable", STRUCTURE_ONLY
            return
        value.errors, value.tolerances, value.scale = (
            tolerance.error_of(measurement),
            explained.tolerance,
            explained.scale,
        )
        if value.errors is not None:
            value.error, value.tolerance = value.errors.worst_against(explained.tolerance)
        if measurement.is_equal:
            value.status = "equal"
        elif self._options.has_fixed_tolerance and measurement.basis != "checksum":
            value.tolerance, value.tolerances = None, None
            value.status = "close" if tolerance.is_within_fixed(value, self._options) else "different"
        else:
            value.status = "close" if _is_explained(value) else "different"
        self._note_dtypes(value)

    def _note_dtypes(self, value: ValuePair) -> None:
        slots = (value.reference, value.candidate)
        dtypes = [short_dtype(slot.dtype) for slot in slots if isinstance(slot, TensorSlot)]
        if len(set(dtypes)) < 2 or "" in dtypes:
            return
        value.reason = f"{dtypes[1]} where the reference has {dtypes[0]}"
        if not self._options.has_fixed_tolerance:
            value.status = "different"

    # ------------------------------------------------------------------------------------------------ the role

    def _decide(self, pair: PairedCall, bad_inputs: list[ValuePair], is_context_bad: bool) -> None:
        bad_outputs = [value for value in pair.outputs if value.is_bad]
        results = [value for value in pair.outputs if value.measurement is not None]
        if pair.role == "entered" and not bad_outputs and any(value.status == "equal" for value in results):
            pair.role, pair.because = "clean", ""  # what differs had no effect here
        if pair.role == "entered":
            return
        failed = {bool(pair.reference.failed), bool(pair.candidate.failed)}
        if len(failed) == 2 and not bad_inputs:
            error = pair.candidate.failed or pair.reference.failed
            side = "candidate" if pair.candidate.failed else "reference"
            pair.role, pair.because = "source", f"it raised an error in the {side} only: {error}"
        elif pair.blamed_before is not None:
            pair.role, pair.because = "source", f"its own code computed another {pair.blamed_before}"
        elif self._decide_arguments(pair, bad_outputs, bad_inputs):
            pass
        elif not bad_outputs:
            pair.role = "clean" if _is_compared(pair) else "not compared"
        elif bad_inputs or is_context_bad:
            pair.role, pair.because = self._decide_downstream(pair, bad_inputs, bad_outputs)
        elif pair.is_inside_bad:
            pair.role, pair.because = "propagated", "the difference arises inside it"
        elif pair.is_framework_made and self.is_any_bad:
            pair.role, pair.because = "propagated", "what came before it differs"
        else:
            pair.role, pair.because = self._decide_source(pair, bad_outputs)

    def _decide_arguments(self, pair: PairedCall, bad_outputs: list[ValuePair], bad_inputs: list[ValuePair]) -> bool:
        arguments = [value for value in pair.inputs if value.measurement is None]
        changed = [value for value in arguments if value.status == "different"]
        if not changed and bad_outputs and not bad_inputs:  # a keyword that one side left to its default
            changed = [value for value in arguments if value.is_mismatch]
        if not changed or (not bad_outputs and not _has_grown(pair)):
            return False
        words = ", ".join(_describe_argument(value) for value in changed[:4])
        pair.role, pair.because = "entered", f"called with {words}"
        return True

    def _decide_downstream(
        self, pair: PairedCall, bad_inputs: list[ValuePair], bad_outputs: list[ValuePair]
    ) -> tuple[Role, str]:
        largest = max((value.error for value in bad_inputs if value.error is not None), default=math.inf)
        for value in bad_outputs:
            if value.error is not None and value.tolerance is not None:
                explained = value.tolerance + value.scale * GAIN * largest
                if value.error > explained and not math.isinf(value.error):
                    return "drift", f"the error grows from {largest:.2g} to {value.error:.2g}, more than it explains"
        return "propagated", "what goes into it differs"

    def _decide_source(self, pair: PairedCall, bad_outputs: list[ValuePair]) -> tuple[Role, str]:
        call = pair.reference
        is_noisy = any(value.status == "close" for value in pair.inputs if value.is_tensor)
        if is_noisy and all(_is_discrete(call, value) for value in bad_outputs):
            return "discontinuity", "its inputs agree up to rounding, and its result is a discrete choice"
        if call.direction == BACKWARD and all(value.measurement is None for value in bad_outputs):
            forward = self._reference.pair(self._reference.flow.forward_of(call))
            if forward is not None:
                lone = self._candidate.lone_users(forward.candidate) + self._reference.lone_users(forward.reference)
                pair.suspects = tuple(dict.fromkeys((*forward.suspects, *lone)))
            return "source", "a gradient that one run has is missing in the other"
        if call.direction == FORWARD and is_a(call.op, "random") and not pair.is_inside_bad:
            generators = (pair.reference.generator, pair.candidate.generator)
            if None not in generators and generators[0] != generators[1]:
                pair.is_random = True
                return "entered", "it is random, and the generator was in another state before it"
            if generators == (None, None) and self._has_other_seed():
                pair.is_random = True
                return "source", "it is random and drew other numbers: were both runs seeded alike (seed_all)?"
        self._suspect_results(pair, bad_outputs)
        if pair.doubts and not pair.suspects:
            pair.suspects = pair.doubts
            names = ", ".join(found.name for found in pair.doubts[:2])
            words = "its inputs have equal statistics, its result differs"
            return "source", f"{words}; they came through {names}, which only one run calls"
        if all(_is_explained_but_large(value) for value in bad_outputs):
            return "drift", "the error has grown step by step until half of the digits are gone"
        return "source", "its inputs agree, its result does not"


def _is_explained(value: ValuePair) -> bool:
    """Within the tolerance, and not half of the digits gone."""
    if value.errors is None or value.tolerances is None:
        return False
    return value.errors.is_within(value.tolerances) and not _is_explained_but_large(value)


def _is_explained_but_large(value: ValuePair) -> bool:
    unit = unit_roundoff(value.reference.dtype) if isinstance(value.reference, TensorSlot) else None
    if unit is None or value.errors is None or value.tolerances is None:
        return False
    return value.errors.is_within(value.tolerances) and value.errors.norm / value.scale > math.sqrt(unit)


def _is_same_value(found: ValuePair, value: ValuePair) -> bool:
    """Is this input that output? Shape may change on the way (a view), numbers may not."""
    first, second = found.measurement, value.measurement
    if first is None or second is None:
        return False
    return first is second or (
        (first.is_equal, first.relative_l2, first.max_abs_error)
        == (second.is_equal, second.relative_l2, second.max_abs_error)
        and _statistics(found) == _statistics(value)
    )


def _statistics(value: ValuePair) -> tuple[object, ...]:
    slot = value.reference
    if not isinstance(slot, TensorSlot):
        return ()
    return (slot.element_count, slot.max, slot.min, slot.checksum)


def _is_parameter(value: ValuePair) -> bool:
    return value.slot.startswith(("parameters.", "buffers."))


def _is_leaf(value: ValuePair) -> bool:
    """At level L1 a parameter is a leaf that requires a gradient."""
    slot = value.reference
    return isinstance(slot, TensorSlot) and slot.requires_grad is True and slot.source is None


def _is_discrete(call: Call, value: ValuePair) -> bool:
    slot = value.reference
    is_whole = isinstance(slot, TensorSlot) and unit_roundoff(slot.dtype) is None
    return is_whole or is_a(call.op, "steps")


def _is_compared(pair: PairedCall) -> bool:
    return not pair.values or any(value.status in ("equal", "close") for value in pair.values)


def _has_grown(pair: PairedCall) -> bool:
    """Is there more error in what came out than in what went in? A view has as much."""
    inputs = max((value.error or 0.0 for value in pair.inputs), default=0.0)
    outputs = [value for value in pair.outputs if value.is_tensor]
    if not any(value.status in ("equal", "close", "different") for value in outputs):
        return True  # nothing else is known of the call
    return any((value.error or 0.0) > inputs * 1.001 for value in outputs)


def _describe_argument(value: ValuePair) -> str:
    name = value.slot.removeprefix("kwargs.")
    if value.reference is None:
        return f"{name}={show_argument(value.candidate)} where the reference gave none"
    if value.candidate is None:
        return f"no {name} where the reference had {show_argument(value.reference)}"
    return f"{name}={show_argument(value.candidate)} where the reference had {show_argument(value.reference)}"


def _describe_rewiring(reference: Call | None, candidate: Call | None, suspects: tuple[Call, ...]) -> str:
    names = [
        name if name is not None else None for name in (reference and reference.name, candidate and candidate.name)
    ]
    from_reference = names[0] or "outside what was recorded"
    from_candidate = names[1] or "outside what was recorded"
    words = f"it comes from {from_reference} in the reference and from {from_candidate} in the candidate"
    if suspects:
        return f"{words}; {', '.join(call.name for call in suspects[:3])} has no counterpart"
    return words
