"""The gradients of calls that have read undefined memory: they mean nothing, and neither does what comes of them in the
backward."""

from __future__ import annotations

from tensorprobe.capture.call import Call
from tensorprobe.model.record import TensorLeaf
from tensorprobe.model.undefined import add_undefined


class UndefinedGradients:
    """The backward records of a step that hold such gradients."""

    def __init__(self) -> None:
        self.records: set[str] = set()

    def note(self, call: Call | None, leaf: TensorLeaf) -> None:
        """A gradient of a call has come; of a parameter, if it is of none."""
        is_passed_on = leaf.source in self.records
        if call is not None and (call.is_undefined or is_passed_on):
            call.is_undefined = True
            self.records.add(call.backward_name)
        if is_passed_on or (call is not None and call.is_undefined):
            leaf.note = add_undefined(leaf.note)

    def clear(self) -> None:
        self.records.clear()
