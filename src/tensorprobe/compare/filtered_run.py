"""A dump of TroubleShooter has only an info file, and its filter leaves single numbers and whole numbers out of it.

What one dump cannot have is no difference: the other one is then taken without it, too.
"""

from __future__ import annotations

from dataclasses import replace

from tensorprobe.compare.call import Run, make_run
from tensorprobe.store.api_dump_info import passes_filter
from tensorprobe.store.api_dump_reader import InfoFile
from tensorprobe.store.slot import PlainSlot, Slot

_STATE = ("parameters.", "buffers.")


def filter_alike(reference: Run, candidate: Run) -> tuple[Run, Run]:
    """Both runs with what both can have."""
    if _is_filtered(reference) == _is_filtered(candidate):
        return reference, candidate
    return (reference, _filter(candidate)) if _is_filtered(reference) else (_filter(reference), candidate)


def _is_filtered(run: Run) -> bool:
    has_numbers = any(isinstance(slot, PlainSlot) for call in run.calls for slot in call.slots)
    return isinstance(run.rank.dump_file, InfoFile) and not has_numbers


def _filter(run: Run) -> Run:
    calls = [replace(call, slots=tuple(filter(_is_kept, call.slots))) for call in run.calls]
    return make_run(run.rank, [call for call in calls if call.slots])


def _is_kept(slot: Slot) -> bool:
    if isinstance(slot, PlainSlot) or slot.slot.startswith(_STATE):
        return False
    return passes_filter(slot.dtype or "", slot.shape or ())
