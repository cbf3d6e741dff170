"""What is wrong in one run alone, in the words of a comparison of two that mean the same."""

from __future__ import annotations

from collections.abc import Iterator

from tensorprobe.replay.result import Finding

_WORDS = {
    "kernel": "its result is not what the call means",
    "overflow": "numbers overflow here",
    "derivative": "the gradient that it gives back is not the derivative",
    "sum": "the gradient that arrives is not the sum of what its users give back: a hook, or a write",
    "write": "what goes in was changed by no recorded call",
    "replica": "it is not what the other ranks have",
}


def describe_finding(finding: Finding) -> str:
    return _WORDS[finding.kind]


def word_finding(side: str, place: str, finding: Finding) -> str:
    """The sentence. `place`: the call, and where it is."""
    words = describe_finding(finding)
    return f"Both runs mean the same, but in the {side} {place} goes wrong: {words} ({finding.slot})."


def word_numbers(finding: Finding) -> Iterator[str]:
    """What was recorded, and what is right."""
    judged = finding.judgement
    if judged is not None:
        yield f"recorded {judged.recorded:.6g}, and {judged.true:.6g} would be right, at {list(judged.index)}"
