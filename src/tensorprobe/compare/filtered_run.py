"""A dump of TroubleShooter has only an info file, and not all in it: its filter leaves single numbers and whole numbers
out, and of a backward some versions have the gradients of the results only.

What one dump cannot have is no difference: the other one is then taken without it, too.
"""

from __future__ import annotations

from dataclasses import replace

from tensorprobe.model.name import BACKWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.store.api_dump_info import passes_filter
from tensorprobe.store.api_dump_reader import InfoFile
from tensorprobe.store.slot import PlainSlot, Slot

_STATE = ("parameters.", "buffers.")


def filter_alike(reference: Run, candidate: Run) -> tuple[Run, Run]:
    """Both runs with what both can have."""
    are_foreign = [isinstance(run.rank.dump_file, InfoFile) for run in (reference, candidate)]
    if are_foreign == [True, False]:
        candidate = _filter_like(reference, candidate)
    elif are_foreign == [False, True]:
        reference = _filter_like(candidate, reference)
    return reference, candidate


def _filter_like(foreign: Run, run: Run) -> Run:
    has_numbers = any(isinstance(slot, PlainSlot) for call in foreign.calls for slot in call.slots)
    has_gradients_of_inputs = any(_is_gradient_of_input(call, slot) for call in foreign.calls for slot in call.slots)

    def is_kept(call: Call, slot: Slot) -> bool:
        if not has_gradients_of_inputs and _is_gradient_of_input(call, slot):
            return False
        return has_numbers or _passes(slot)

    calls = [replace(call, slots=tuple(slot for slot in call.slots if is_kept(call, slot))) for call in run.calls]
    return Run(run.rank, [call for call in calls if call.slots])


def _is_gradient_of_input(call: Call, slot: Slot) -> bool:
    return call.direction == BACKWARD and not slot.is_input


def _passes(slot: Slot) -> bool:
    if isinstance(slot, PlainSlot) or slot.slot.startswith(_STATE):
        return False
    return passes_filter(slot.dtype or "", slot.shape or ())
