"""The script that repeats the call of the verdict, to copy out of the page.

It is made out of the record of the call; the tensors that it reads are written by `tensorprobe repro`.
"""

from __future__ import annotations

from typing import Any

from tensorprobe.compare.result import Verdict
from tensorprobe.errors import TensorprobeError
from tensorprobe.replay import make_repro_text
from tensorprobe.report.next_command import find_repeated
from tensorprobe.report.page.recorded import Recorded

_MAX_TEXT = 1 << 20
_SIDE = "candidate"


def describe_script(verdict: Verdict, place: int | None, recorded: Recorded) -> dict[str, Any] | None:
    """Of the candidate's call, which is the one in doubt: the text, or why there is none. None without such a call."""
    call = None if verdict.call is None else verdict.call.candidate[-1]
    name = None if call is None else find_repeated(call)
    rank = recorded.find_rank(_SIDE, place)
    if name is None or rank is None:
        return None
    told = {"side": _SIDE, "call": name}
    try:
        text = make_repro_text(rank, name)
    except TensorprobeError as error:
        return {**told, "reason": str(error)}
    return {**told, "text": text} if len(text) <= _MAX_TEXT else None
