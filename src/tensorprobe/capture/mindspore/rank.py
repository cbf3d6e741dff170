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
