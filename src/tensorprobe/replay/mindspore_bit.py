"""A run of MindSpore replayed in its recorded precision, by MindSpore itself: does it give its bits again?

Torch's kernels do not give MindSpore's bits. So each call is made again, by MindSpore's own function, on its recorded
inputs, and must give the recorded bits; and each input must have the bits of the result that it is. Together that is
the whole chain. MindSpore is imported when this runs, not before.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tensorprobe.errors import UsageError
from tensorprobe.store.reader import RankDump


@dataclass
class BitCheck:
    """How many bits came out as they were recorded; true where all of those that were checked did."""

    name: str
    """`step0/rank3`"""
    call_count: int = 0
    same: int = 0
    """Calls all of whose results have the recorded bits."""
    different: list[str] = field(default_factory=list)
    """The results that have not: `Functional.softmax.0.forward.output.0`"""
    random: int = 0
    """Calls that draw numbers: they are not made again."""
    not_run: dict[str, str] = field(default_factory=dict)
    """Calls that could not be made again, and why."""
    link_count: int = 0
    """Inputs that are the result of a call."""
    broken_links: list[str] = field(default_factory=list)
    """Those whose bits are not those of any result of that call."""
    gradient_count: int = 0
    """Gradients that a call gave back."""
    different_gradients: list[str] = field(default_factory=list)
    gradients_not_run: dict[str, str] = field(default_factory=dict)
    """Calls whose gradients could not be computed again, and why."""

    def __bool__(self) -> bool:
        return not (self.different or self.broken_links or self.different_gradients)

    @property
    def is_checked(self) -> bool:
        """Could anything be said at all?"""
        return self.same > 0 or bool(self.different)


def check_bits(rank: RankDump) -> BitCheck:
    """Make every call of a MindSpore dump again, in MindSpore, and hold its bits against the recorded ones. UsageError
    where there is no MindSpore."""
    try:
        import mindspore  # noqa: F401
    except ImportError:
        raise UsageError(
            "the bits of a MindSpore dump are given again by MindSpore only: pip install mindspore"
        ) from None
    from tensorprobe.replay.bit_run import BitRun

    return BitRun(rank).run()
