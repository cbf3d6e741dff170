"""What the judge knows while it goes through two runs: how large errors are, whether anything differs yet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tensorprobe.compare.judge.kept_state import Kept, find_kept
from tensorprobe.compare.judge.precision import unit_roundoff
from tensorprobe.compare.match.pairing import PairedCall, RunSide
from tensorprobe.compare.measure.noise import SILENCE, Noise, loudest
from tensorprobe.compare.option import CompareOptions

_SEEDS = ("torch_seed", "mindspore_seed")


@dataclass(frozen=True)
class Past:
    """What the steps of a process that were compared before this one leave behind: it shows in the parameters."""

    noise: Noise = SILENCE
    has_parted: bool = False
    """Something differed: that parameters differ now needs no other reason."""
    is_empty: bool = True
    kept: Kept = frozenset()
    """What calls keep from step to step and found to be the same in the step before this one."""


class Course:
    """One pass over one pair of runs."""

    def __init__(self, reference: RunSide, candidate: RunSide, options: CompareOptions, past: Past) -> None:
        self.reference = reference
        self.candidate = candidate
        self.options = options
        self.past = past
        self.worst_noise = past.noise
        """The largest error so far of what still agrees."""
        self.is_any_bad = False
        self.coarsest = max(map(_coarsest, (reference, candidate)))
        """The unit roundoff of the coarsest dtype: bfloat16's, in a run with autocast."""
        self.has_apis = all(map(_has_apis, (reference, candidate)))
        """False at level L0 of either run, where only modules are recorded."""

    def end(self, pairs: Iterable[PairedCall]) -> Past:
        """What the next step finds."""
        has_parted = self.past.has_parted or self.is_any_bad
        return Past(self.worst_noise, has_parted, is_empty=False, kept=find_kept(pairs))

    def forget_differences(self, pairs: Iterable[PairedCall]) -> None:
        """Some that were judged to differ do not count: the next step finds only what these pairs leave."""
        self.is_any_bad = any(_is_bad(pair) for pair in pairs if not pair.is_framework_made)

    def remember(self, pair: PairedCall) -> None:
        """A pair was judged."""
        is_bad = _is_bad(pair)
        noise = loudest(value.noise for value in pair.values)
        if not pair.is_framework_made:
            self.is_any_bad = self.is_any_bad or is_bad
            self.worst_noise = loudest((self.worst_noise, noise))
        outer = self.reference.pair(self.reference.nesting.parent(pair.reference))
        if outer is not None and outer is not pair:
            outer.inner_noise = loudest((outer.inner_noise, noise))
            outer.is_inside_bad = outer.is_inside_bad or is_bad or pair.role != "clean"

    def context(self, pair: PairedCall) -> tuple[Noise, bool]:
        """What else goes in: for a backward call its forward, for a gradient of parameters all calls of the module."""
        call = pair.reference
        if call.kind == "parameters_grad":
            return self.worst_noise, self.is_any_bad
        noise, is_bad = pair.inner_noise, False
        forward = self.reference.pair(self.reference.flow.forward_of(call))
        if forward is not None and forward.is_judged:
            noise = loudest([noise, *(value.noise for value in forward.values)])
            is_bad = any(value.is_bad for value in forward.values)
        return noise, is_bad

    def outer(self, pair: PairedCall) -> PairedCall | None:
        """The module call around a call, if both runs have it."""
        outer = self.reference.pair(self.reference.nesting.parent(pair.reference))
        is_same = outer is self.candidate.pair(self.candidate.nesting.parent(pair.candidate))
        return outer if is_same else None

    def has_other_seed(self) -> bool:
        """Were the runs seeded differently, or is nothing known of that?"""
        seeds = []
        for side in (self.reference, self.candidate):
            settings = side.run.rank.run.get("settings")
            known = settings if isinstance(settings, dict) else {}
            seeds.append(next((known[key] for key in _SEEDS if key in known), None))
        return None in seeds or seeds[0] != seeds[1]


def _is_bad(pair: PairedCall) -> bool:
    return pair.is_bad or pair.role in ("source", "entered")


def _has_apis(side: RunSide) -> bool:
    return any(call.kind == "api" and call.caller is None for call in side.run.calls)


def _coarsest(side: RunSide) -> float:
    dtypes = {slot.dtype for call in side.run.calls for slot in call.tensors}
    return max((unit_roundoff(dtype) or 0.0 for dtype in dtypes), default=0.0)
