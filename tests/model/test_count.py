"""Counts before nouns: one thing is no plural. No message of the package puts a number before a fixed plural that may
be one."""

from __future__ import annotations

from tensorprobe.model.count import count_noun


def test_one_is_singular_and_all_else_is_plural() -> None:
    assert [count_noun(number, "call") for number in (0, 1, 2, 1000)] == ["0 calls", "1 call", "2 calls", "1,000 calls"]
    assert count_noun(1, "entry", "entries") == "1 entry"
    assert count_noun(3, "call is", "calls are") == "3 calls are"
