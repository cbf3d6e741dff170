"""Which calls do the same? By what they are called, in whatever framework, and by where they stand."""

from __future__ import annotations

from collections.abc import Iterable

from tensorprobe.replay.true_step import TrueCall
from tensorprobe.word.spelling import common_word


def word_of(call: TrueCall) -> str:
    """What it does, in the words that all frameworks share: `add` for `add_`, `__add__` and `aten.add.Tensor`."""
    return common_word(call.framework, call.prefix, call.op)


def is_alike(first: TrueCall, second: TrueCall) -> bool:
    """Do they do the same, in the same module?"""
    return word_of(first) == word_of(second) and first.module_path == second.module_path


def count_alike(call: TrueCall, calls: Iterable[TrueCall]) -> int:
    return sum(is_alike(one, call) for one in calls)


def find_alike(call: TrueCall, own: Iterable[TrueCall], others: Iterable[TrueCall]) -> TrueCall | None:
    """Of the calls of the other run the one that does the same, in the same module, and as near to the end."""
    alike = [one for one in own if is_alike(one, call)]
    others_alike = [one for one in others if is_alike(one, call)]
    place = len(alike) - alike.index(call)
    return others_alike[-place] if place <= len(others_alike) else None


def unlikeness(call: TrueCall, other: TrueCall) -> tuple[bool, bool, int]:
    """Small for one that does the same, in the same module, at about the same time."""
    return word_of(other) != word_of(call), other.module_path != call.module_path, abs(other.position - call.position)
