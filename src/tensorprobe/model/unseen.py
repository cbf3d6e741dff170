"""What a run could not see, in words that capture writes and reports read; and what to do to see it."""

from __future__ import annotations

from collections.abc import Collection

COMPILED_REGION = "compiled region"
"""Of torch.compile."""

LOOK_INSIDE = 'to look inside compiled functions, record with "compiled": "eager"'


def advise(unseen: Collection[str]) -> str | None:
    """How to see more of it the next time; None where nothing can be done."""
    return LOOK_INSIDE if COMPILED_REGION in unseen else None
