"""One side of a comparison by truth: its program, executed in float64 as often as it is needed."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tensorprobe.replay import MemoryLimit, find_device, limit_memory
from tensorprobe.replay.inside import Inside
from tensorprobe.replay.program import read_program
from tensorprobe.replay.result import Truth
from tensorprobe.replay.true_step import Array, LeafKey, TrueStep
from tensorprobe.replay.true_step_builder import KEEP_VALUES, Exchange, Keeping, build_true_step, make_replacement
from tensorprobe.replay.truth import find_truths
from tensorprobe.store.reader import RankDump


class Replaying:
    """One step of one process."""

    def __init__(self, rank: RankDump) -> None:
        self.loss_scale = 1.0
        """What the program multiplies its loss by, and its gradients with it, which is taken back in what a replay
        gives."""
        self.chooses_anew = False
        """Is what the run chose left aside, and what it would have chosen without rounding taken?"""
        self._program = read_program(rank)
        self._device = find_device("cpu")
        limit_memory([self._program], self._device, MemoryLimit())

    def find_truth(self) -> Truth:
        """Each call held against what it means: what is the matter with this run alone?"""
        return find_truths([self._program], self._device)[0]

    def look_inside(self) -> Inside:
        """Takes the calls of one replayed step apart."""
        return Inside(self._program, self._device)

    def replay(
        self,
        replacements: Mapping[LeafKey, Array],
        moved: Collection[LeafKey] = (),
        exchanged: Mapping[tuple[str, str], Array] | None = None,
        keeping: Keeping = KEEP_VALUES,
    ) -> TrueStep:
        """With other leaves, and other results of calls."""
        replace_leaf = make_replacement(replacements, moved)
        step = build_true_step(
            self._program,
            self._device,
            replace_leaf,
            Exchange(exchanged or {}),
            keeping=keeping,
            chooses_anew=self.chooses_anew,
        )
        step.take_back(self.loss_scale)
        return step
