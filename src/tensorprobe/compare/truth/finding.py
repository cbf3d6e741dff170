"""What is wrong in one run alone, in the words of a comparison of two that mean the same."""

from __future__ import annotations

from collections.abc import Iterator

from tensorprobe.replay.result import Finding

_WORDS = {
    "kernel": "its result is not what it should be for its inputs",
    "overflow": "values overflow here",
    "derivative": "the gradient that it returns is not its derivative",
    "sum": "the gradient is not the sum of what the calls that use the value return: a hook, or a write",
    "write": "its input was changed by something that was not recorded",
    "replica": "it is not the same as on the other ranks",
}


def describe_finding(finding: Finding) -> str:
    return _WORDS[finding.kind]


def word_finding(side: str, place: str, finding: Finding) -> str:
    """The sentence. `place`: the call, and where it is."""
    words = describe_finding(finding)
    return f"Both programs are equivalent, but in the {side} {place} goes wrong: {words} ({finding.slot})."


def word_numbers(finding: Finding) -> Iterator[str]:
    """What was recorded, and what is right."""
    judged = finding.judgement
    if judged is not None:
        yield f"at {list(judged.index)}: recorded {judged.recorded:.6g}, correct {judged.true:.6g}"
