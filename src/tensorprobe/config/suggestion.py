"""What a misspelt word was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: object, accepted: Iterable[str]) -> str:
    """`did you mean "L1"?` for a word that is nearly an accepted one, else nothing.

    >>> suggest("l1", ["L0", "L1", "mix"])
    'did you mean "L1"?'
    """
    if not isinstance(word, str):
        return ""
    # Compared without case, because difflib takes l1 and L1 for different words.
    spelling_of = {name.casefold(): name for name in accepted}
    matches = get_close_matches(word.strip().casefold(), spelling_of, n=1)
    return f'did you mean "{spelling_of[matches[0]]}"?' if matches else ""
