"""Why a call was not made again, in words."""

from __future__ import annotations

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.allocation import TooLargeError
from tensorprobe.replay.argument import UnknownArgumentError
from tensorprobe.replay.content_guard import UnsafeContentError
from tensorprobe.replay.invocation import NotReplayedError
from tensorprobe.replay.meaning.registry import MeaningError
from tensorprobe.replay.recorded import MissingContentError

_OWN_ERRORS = (
    MeaningError,
    MissingContentError,
    NotReplayedError,
    TooLargeError,
    UnknownArgumentError,
    UnknownFunctionError,
    UnsafeContentError,
)


def describe_error(error: BaseException) -> str:
    """The first line of what went wrong."""
    lines = str(error).strip().splitlines()
    if isinstance(error, _OWN_ERRORS) and lines:
        return lines[0][:400]
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
