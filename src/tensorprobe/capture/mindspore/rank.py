"""Which process of a distributed run this is."""

from __future__ import annotations

import os

from mindspore.communication import GlobalComm, get_rank


def current_rank() -> int | None:
    """The rank among the initialised processes; before that, what the launcher says; None in a single process."""
    if GlobalComm.INITED:
        return int(get_rank())
    if os.environ.get("RANK_ID", "").isdecimal() and os.environ.get("RANK_SIZE", "").isdecimal():
        return int(os.environ["RANK_ID"])
    return None


def is_scheduler() -> bool:
    """`msrun` starts the program once more for its scheduler, as rank 0 too; `init()` does not return there."""
    return os.environ.get("MS_ROLE") == "MS_SCHED"
