"""What an input was computed from, and whether that explains it.

Both sides name the call that produced it; or they name different calls; or none, and then it is the sum of several
gradients, or the own code of the module around the call computed it, or it came from outside: data, a parameter.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensorprobe.compare.judge import tolerance
from tensorprobe.compare.judge.course import Course
from tensorprobe.compare.judge.kept_state import is_kept
from tensorprobe.compare.judge.status import is_same_value
from tensorprobe.compare.match.pairing import PairedCall
from tensorprobe.compare.measure.noise import GAIN, SILENCE, Noise, loudest
from tensorprobe.compare.result import ValuePair
from tensorprobe.model.name import BACKWARD
from tensorprobe.model.undefined import UNDEFINED_MEMORY
from tensorprobe.run.call import Call
from tensorprobe.run.content import numbers_of
from tensorprobe.store.slot import TensorSlot

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
    producer: PairedCall | None = None
    """The call that both sides took it from: then `describe_blame` finds out what to say."""
    own_code_of: PairedCall | None = None
    """Should the value differ: the module whose own code computed it."""
    suspects: tuple[Call, ...] = ()
    is_external: bool = False
    """It came from outside what was recorded: data, a parameter, a buffer."""
    is_undefined: bool = False
    natural_norm: float | None = None
    gain: float = GAIN

    def describe_blame(self, value: ValuePair) -> str:
        """Of a value that differs: few do, and to look through the results of its producer takes time."""
        return self.blame if self.producer is None else _describe_other_result(self.producer, value)


class OriginFinder:
    """Finds origins among the calls that were judged already."""

    def __init__(self, course: Course) -> None:
        self._course = course

    def find(self, pair: PairedCall, value: ValuePair) -> Origin:
        """Where this input of this pair came from."""
        reference, candidate = value.reference, value.candidate
        assert isinstance(reference, TensorSlot) and isinstance(candidate, TensorSlot)
        producers = (self._course.reference.flow.producer(reference), self._course.candidate.flow.producer(candidate))
        pairs = (self._course.reference.pair(producers[0]), self._course.candidate.pair(producers[1]))
        if pairs[0] is not None and pairs[0] is pairs[1]:
            return self._produced(pairs[0], value) if pairs[0].is_judged else self._unknown(pair, value)
        if producers[0] is None and producers[1] is None:
            return self._unknown(pair, value)
        rewired = self._rewired(*producers)
        if pair.reference.direction == BACKWARD and None in producers:  # on that side it is the sum of several
            rewired.is_bad = rewired.is_bad or self._course.is_any_bad
        outer = self._course.outer(pair)
        if pair.reference.kind == "module" and outer is not None:  # the module around it has put it there
            own_code = self._own_code(outer)
            own_code.is_bad, own_code.suspects = own_code.is_bad or rewired.is_bad, rewired.suspects
            return own_code
        return rewired

    def _produced(self, producer: PairedCall, value: ValuePair) -> Origin:
        """Both sides took it from the same pair of calls."""
        measured = [found for found in producer.outputs if found.measurement is not None]
        outputs = [found for found in measured if found.reason != UNDEFINED_MEMORY]
        same = [found for found in outputs if is_same_value(found, value)]
        origin = Origin(is_bad=any(found.is_bad for found in same or outputs), producer=producer)
        if len(outputs) < len(measured) and not same:
            origin.is_undefined = not outputs or any(is_same_value(found, value) for found in measured)
        if same:
            if same[0].tolerances is not None:
                origin.explained = tolerance.Explained(same[0].tolerances, same[0].scale)
            origin.noise = same[0].noise
        else:
            origin.noise = loudest(found.noise for found in outputs)
        return origin

    def _rewired(self, reference: Call | None, candidate: Call | None) -> Origin:
        """The two sides took it from different places."""
        sides = ((self._course.reference, reference), (self._course.candidate, candidate))
        is_bad = any(producer is not None and side.is_tainted(producer) for side, producer in sides)
        suspects = self._course.reference.suspects(reference) + self._course.candidate.suspects(candidate)
        return Origin(
            noise=self._course.worst_noise,
            is_bad=is_bad,
            suspects=suspects,
            blame=_describe_rewiring(reference, candidate, suspects),
        )

    def _unknown(self, pair: PairedCall, value: ValuePair) -> Origin:
        """No record says where it came from."""
        if _is_parameter(value):
            kind, _, name = value.slot.partition(".")
            what = {"parameters": f"the parameter {name}", "buffers": f"the buffer {name}"}.get(kind, "it")
            blame = f"{what} already differed before the call"
            past = self._course.past
            return Origin(past.noise, past.has_parted, gain=STEP_GAIN, is_external=True, blame=blame)
        if is_kept(pair, value):
            return self._kept()
        gathered = self._accumulated(pair) if pair.reference.kind == "api" else None
        if gathered is not None:
            return gathered
        outer = self._course.outer(pair)
        if outer is not None:
            return self._own_code(outer)
        is_leaf = _is_leaf(value)
        what = "the gradient that came in from outside" if pair.reference.direction == BACKWARD else "the input data"
        if pair.reference.direction != BACKWARD and _requires_grad(value):
            what = "a parameter or an intermediate result"
        return Origin(
            noise=self._course.worst_noise,
            gain=STEP_GAIN if is_leaf else GAIN,
            is_bad=self._course.is_any_bad or (is_leaf and self._course.past.has_parted),
            is_external=True,
            blame=f"it comes from code that was not recorded: {what} differs",
        )

    def _kept(self) -> Origin:
        """An argument that the call finds where an earlier one has left it, in this step or before."""
        past = self._course.past
        return Origin(
            noise=self._course.worst_noise,
            is_bad=past.has_parted,
            gain=GAIN if past.is_empty else STEP_GAIN,
            is_external=True,
            blame="the state that the call keeps from step to step already differed before it",
        )

    def _own_code(self, outer: PairedCall) -> Origin:
        context_noise, is_context_bad = self._course.context(outer)
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
        parts = self._course.reference.flow.contributions(pair.reference)
        if not parts:
            return None
        values = []
        for call, slot in parts:
            behind = self._course.reference.pair(call)
            if behind is None or not behind.is_judged:
                blame = f"{call.name} has no partner"
                return Origin(noise=self._course.worst_noise, is_bad=self._course.is_any_bad, blame=blame)
            values += [value for value in behind.outputs if value.slot == slot.slot]
        # One part alone would have been named as its source: something that was not recorded was added, or changed it.
        is_sum = len(parts) > 1
        return Origin(
            noise=loudest(value.noise for value in values) if is_sum else self._course.worst_noise,
            is_bad=any(value.is_bad for value in values) or (not is_sum and self._course.is_any_bad),
            blame="it is the sum of gradients that agree, but it was changed on the way (by a hook?)",
            natural_norm=tolerance.largest_norm(slot for _, slot in parts),
        )


def _is_parameter(value: ValuePair) -> bool:
    return value.slot.startswith(("parameters.", "buffers."))


def _requires_grad(value: ValuePair) -> bool:
    return isinstance(value.reference, TensorSlot) and value.reference.requires_grad is True


def _is_leaf(value: ValuePair) -> bool:
    """At level L1 a parameter is a leaf that requires a gradient."""
    return _requires_grad(value) and isinstance(value.reference, TensorSlot) and value.reference.source is None


def _describe_other_result(producer: PairedCall, value: ValuePair) -> str:
    """The results of a call agree, and an input that comes from there does not."""
    sides = (producer.reference, value.reference), (producer.candidate, value.candidate)
    taken = [
        [
            result.slot
            for result in call.tensors
            if not result.is_input and isinstance(slot, TensorSlot) and numbers_of(result) == numbers_of(slot)
        ]
        for call, slot in sides
    ]
    name = producer.reference.name
    if len(taken[0]) == len(taken[1]) == 1 and taken[0] != taken[1]:
        return f"it is {taken[1][0]} of {name} where the reference took {taken[0][0]}"
    fallbacks = (found.measurement.fallback for found in producer.outputs if found.measurement is not None)
    lost = next((reason for reason in fallbacks if reason is not None), None)
    if lost is not None:
        return f"what {name} returned agrees, but only by its record ({lost})"
    return f"what {name} returned agrees, but it was changed before this call"


def _describe_rewiring(reference: Call | None, candidate: Call | None, suspects: tuple[Call, ...]) -> str:
    unknown = "unrecorded code"
    from_reference = unknown if reference is None else reference.name
    from_candidate = unknown if candidate is None else candidate.name
    words = f"it comes from {from_reference} in the reference and from {from_candidate} in the candidate"
    if suspects:
        names = [call.name for call in suspects[:3]]
        return f"{words}; {', '.join(names)} {'has' if len(names) == 1 else 'have'} no counterpart"
    return words
