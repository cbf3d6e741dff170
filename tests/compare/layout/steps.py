"""Ranks with a few calls, written down: no process is needed to look at what they hold."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from tensorprobe.replay.rank_step import RankStep
from tensorprobe.replay.result import Coverage
from tensorprobe.replay.true_step import Array, TrueCall, TrueStep, TrueValue


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).normal(size=shape)


class StepBuilder:
    """One rank, call by call."""

    def __init__(self, rank: int = 0) -> None:
        self._values: list[TrueValue] = []
        self._calls: dict[str, TrueCall] = {}
        self._rank = rank

    def add_leaf(self, array: Array, parameter: str | None = None) -> int:
        self._values.append(TrueValue(len(self._values), array, "float32", None, "input.0", parameter))
        return len(self._values) - 1

    def add_call(
        self,
        op: str,
        inputs: list[int],
        output: Array,
        *,
        is_root: bool = False,
        is_random: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> int:
        name = f"Torch.{op}.{len(self._calls)}.forward"
        number = len(self._values)
        self._values.append(TrueValue(number, output, "float32", name, "output.0", is_root=is_root))
        given = {f"input.{place}": one for place, one in enumerate(inputs)}
        self._calls[name] = TrueCall(
            *(name, len(self._calls), "pytorch", "Torch", op, None, None, given, {"output.0": number}),
            arguments=dict(arguments or {}),
            is_random=is_random,
        )
        return number

    def build(self, gradients: Mapping[str, Array] | None = None) -> RankStep:
        step = TrueStep(f"step0/rank{self._rank}", self._calls, self._values, Coverage())
        parameters = {value.parameter: value.array for value in self._values if value.parameter is not None}
        return RankStep(self._rank, step, {}, parameters, dict(gradients or {}))


def hold(rank: int, parameters: Mapping[str, Array], gradients: Mapping[str, Array] | None = None) -> RankStep:
    """A rank that has nothing but parameters."""
    builder = StepBuilder(rank)
    for name, array in parameters.items():
        builder.add_leaf(array, name)
    return builder.build(gradients)
