"""Numbers of things, in words."""

from __future__ import annotations


def count_noun(number: int, singular: str, plural: str | None = None) -> str:
    """The plural is the singular with an s, unless it is given.

    >>> count_noun(1, "record"), count_noun(2000, "record"), count_noun(1, "call is", "calls are")
    ('1 record', '2,000 records', '1 call is')
    """
    return f"{number:,} {singular if number == 1 else plural or f'{singular}s'}"
