"""What is recorded of a call besides its arguments and results: what it finds, and under what it is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorprobe.capture.call import Call, GradientRecord
from tensorprobe.capture.describe import Describer
from tensorprobe.capture.selector import Selector
from tensorprobe.capture.storing import Storing, storing_of_results
from tensorprobe.capture.watch import Watch


class CallFields:
    """A part of the recorder."""

    selector: Selector
    _describer: Describer
    _watch: Watch

    def add_state(self, call: Call, role: str, tensors: Mapping[str, Any]) -> None:
        """The parameters or buffers that a module call finds."""
        if call.keeps_forward and self.selector.keeps_inputs:
            stores = self.selector.storing(call.forward_name)
            slot, listen = self._slot(call.forward_name, role), self._watch.listen(call.watched)
            call.fields[role] = self._describer.describe(dict(tensors), slot, stores=stores, listen=listen)

    def add_settings(self, call: Call, settings: Mapping[str, Any], tuples: Sequence[str]) -> None:
        """What the object that is called was made with, and where in it tuples are."""
        if settings and call.keeps_forward and self.selector.keeps_inputs:
            call.fields["settings"] = settings
            if tuples:
                call.fields["tuples"] = [*call.fields.get("tuples", ()), *tuples]

    def add_context(self, call: Call, context: Mapping[str, Any]) -> None:
        """Under what else the call was made: without gradients, under autocast."""
        if call.keeps_forward:
            call.fields.update(context)

    def stores_tensors(self, call: Call) -> bool:
        """Do tensors of this call get files?"""
        return call.keeps_forward and bool(self.selector.storing(call.forward_name))

    def add_draw(self, call: Call, role: str, tensor: Any) -> None:
        """What a replay needs to draw the same random numbers: the state of the generator, or the mask it drew."""
        call.fields[role] = self._describer.describe_tensor(
            tensor, self._slot(call.forward_name, role), None, Storing.ALL
        )

    def add_written(self, call: Call, tensors: Mapping[str, Any]) -> None:
        """What the call has written to and does not return, by the names of the places where it was given. Only a
        replay asks for it."""
        if self.stores_tensors(call) and self.selector.keeps_outputs:
            name, stores = call.forward_name, self._storing_of_results(call)
            call.fields["written"] = {
                place: self._describer.describe_tensor(tensor, self._slot(name, f"written.{place}"), name, stores)
                for place, tensor in tensors.items()
            }

    def add_generator(self, call: Call, state: str | None) -> None:
        """The random generator that the call draws from, as it was before."""
        if call.keeps_forward and state is not None:
            call.fields["generator"] = state

    def _slot(self, name: str, path: str, backward: GradientRecord | None = None) -> str:
        """What a part of a record is called, and the file of what is there."""
        return f"{name}.{path}"

    def _storing_of_results(self, call: Call) -> Storing:
        stores = self.selector.storing(call.forward_name)
        if stores is not Storing.LEAVES:
            return stores
        return storing_of_results(call.fields, is_pinned=call.is_pinned, is_passed_on=call.is_passed_on)
