"""Where parameters are updated that a step finds otherwise than the reference: the calls that did it in the step before
stand at the same lines as those of this one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tensorprobe.compare.result import CallResult
from tensorprobe.model.name import BACKWARD, FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run, word_lines

_FIRST = "input.0"
BECAUSE = "it updates parameters, which differ afterwards"


@dataclass(frozen=True)
class UpdateCalls:
    """The calls that update one parameter in each run, as far as they are recorded."""

    runs: Mapping[str, Run]
    calls: Mapping[str, Call | None]

    @property
    def lines(self) -> list[str]:
        found = {}
        for side, call in self.calls.items():
            lines = () if call is None else self.runs[side].describe_lines(call, None)
            if lines:
                found[side] = lines
        return word_lines(found)

    @property
    def result(self) -> CallResult | None:
        """None where neither run has recorded it."""
        reference, candidate = self.calls.values()
        first, second = reference or candidate, candidate or reference
        if first is None or second is None:
            return None
        places = [None if call is None else self.runs[side].location(call) for side, call in self.calls.items()]
        return CallResult((first,), (second,), "truth", (), "source", BECAUSE, *places)


def find_update_calls(runs: Mapping[str, Run], names: Mapping[str, str | None]) -> UpdateCalls:
    """`names`: what the parameter is called in each run."""
    return UpdateCalls(runs, {side: _find_update_call(run, names[side]) for side, run in runs.items()})


def _find_update_call(run: Run, name: str | None) -> Call | None:
    """The last call behind the backward that takes it; one of an optimizer, if there is any, or one that writes to what
    it is given first. A compiled optimizer does not tell what it holds."""
    last = max((call.position for call in run.calls if call.direction == BACKWARD), default=-1)
    later = [call for call in run.calls if call.direction == FORWARD and call.position > last]
    taking = [
        (call, slot.slot.startswith(_FIRST))
        for call in later
        for slot in call.tensors
        if name is not None and slot.is_input and slot.parameter == name
    ]
    made = [call for call, _ in taking if call.caller is not None] or [call for call, is_first in taking if is_first]
    made = made or [call for call in later if call.caller is not None and call.prefix == "Jit"]
    return made[-1] if made else None
