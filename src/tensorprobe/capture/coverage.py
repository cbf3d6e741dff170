"""What a step saw, and what it could not see. Printed by every command: unseen is never reported as equal."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

LEFT_OUT = "call after the limit of disk space was reached"


@dataclass(slots=True)
class Coverage:
    """Counts of one step of one process."""

    seen: int = 0
    """Calls that the selection was asked about."""
    recorded: int = 0
    """Records in dump.json, forward and backward, and single points in debug.json."""
    filtered: int = 0
    """Calls that the configuration left out."""
    excluded: int = 0
    """Calls that compute nothing (`size`, property reads), or that api_yaml removed."""
    failed: int = 0
    """Failures inside capture; each is logged once, and the program goes on."""
    recomputed: int = 0
    """Calls that activation checkpointing repeated in the backward."""
    recomputed_differently: int = 0
    """Those whose values were not the ones of the forward."""
    stale: int = 0
    """Values that were taken as known and had changed, as verify mode found out; recorded as they are."""
    unseen: dict[str, int] = field(default_factory=dict)
    """What could not be seen, by reason."""

    def count_kept(self, is_kept: bool, *, is_over: bool) -> None:
        """A call was selected, or not; `is_over`: because recording has ended."""
        if is_over:
            self.add_unseen(LEFT_OUT)
        elif not is_kept:
            self.filtered += 1

    def add_unseen(self, reason: str, count: int = 1) -> None:
        self.unseen[reason] = self.unseen.get(reason, 0) + count

    def has_any(self) -> bool:
        """Has anything happened at all?"""
        return any((self.seen, self.recorded, self.excluded, self.failed, self.unseen))

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)
