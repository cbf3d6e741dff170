"""Two steps of one run, held against each other: that they differ is no fault."""

from __future__ import annotations

import re
from dataclasses import replace

from tensorprobe.compare.result import Verdict
from tensorprobe.compare.step import RankPair
from tensorprobe.store.reader import RankDump

_STEP = re.compile(r"step(\d+)")
_IDENTITIES = (("run_id",), ("host", "pid", "command"))
"""What no two runs have in common, in run.json: the first of these that both have."""


def note_same_run(verdict: Verdict, pair: RankPair) -> Verdict:
    """The verdict, and before it that both are of one run, if they are two of its steps."""
    steps = _step_number(pair.reference), _step_number(pair.candidate)
    if None in steps or steps[0] == steps[1] or not _is_same_run(pair.reference, pair.candidate):
        return verdict
    words = (
        f"These are step {steps[0]} and step {steps[1]} of one run, not two runs: different data and weights are "
        "expected."
    )
    return replace(verdict, headline=f"{words} {verdict.headline}")


def _step_number(rank: RankDump) -> int | None:
    """Also of a rank folder that was opened by itself."""
    if rank.step is not None:
        return rank.step
    found = _STEP.fullmatch(rank.folder.resolve().parent.name)
    return int(found[1]) if found else None


def _is_same_run(reference: RankDump, candidate: RankDump) -> bool:
    """By what run.json says; without it, by the dump_path that both lie in."""
    for keys in _IDENTITIES:
        found = [tuple(rank.run.get(key) for key in keys) for rank in (reference, candidate)]
        if all(None not in one for one in found):
            return found[0] == found[1]
    return reference.folder.resolve().parents[1] == candidate.folder.resolve().parents[1]
