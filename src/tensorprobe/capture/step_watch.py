"""What is found in the records of a step when they are written: the first NaN or Inf, and the loss. Their statistics
are on the host by then, so nothing waits for a device."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import median
from typing import Any

from tensorprobe.capture.sink import Finished
from tensorprobe.capture.storing import is_floating
from tensorprobe.capture.watch import Finding, Watched, find_nonfinite, tell_finding
from tensorprobe.config.flight_recorder import MIN_LOSSES
from tensorprobe.model.record import TensorLeaf

_INPUTS = ("input_args", "input_kwargs", "parameters", "buffers", "input")
_SPREAD = 3.0
"""Three median distances are two standard deviations: by the default factor four of them are no spike yet."""


class StepWatch:
    """Looks at the records of one step."""

    def __init__(self) -> None:
        self.nonfinite: str | None = None
        """The first call with NaN or Inf, in words."""
        self._last_scalar: TensorLeaf | None = None
        self._is_backward = False

    def observe(self, records: Iterable[Finished]) -> None:
        for record in records:
            if self.nonfinite is None:
                finding = find_in_record(record.name, record.fields)
                self.nonfinite = None if finding is None else tell_finding(finding, record.stack)
            if not self._is_backward:
                self._look_for_loss(record)

    def loss(self, roots: Sequence[TensorLeaf]) -> float | None:
        """The mean of what gradients were asked of; where that is not known, the last scalar that a call returned
        before the backward pass."""
        leaves = list(roots)
        if not leaves and self._is_backward and self._last_scalar is not None:
            leaves = [self._last_scalar]
        values = [value for value in map(_value_of, leaves) if value is not None]
        return sum(values) / len(values) if values else None

    def _look_for_loss(self, record: Finished) -> None:
        if ".backward" in record.name:
            self._is_backward = True
            return
        outputs = record.fields.get("output") if isinstance(record.fields, dict) else None
        if isinstance(outputs, list) and len(outputs) == 1 and isinstance(outputs[0], TensorLeaf):
            leaf = outputs[0]
            if math.prod(leaf.shape) == 1 and is_floating(leaf):
                self._last_scalar = leaf


def find_in_record(name: str, fields: Any) -> Finding | None:
    """The NaN or Inf of one record, by the rule of `on_nonfinite`."""
    if not isinstance(fields, dict):
        return None
    given = {key: item for key, item in fields.items() if key in _INPUTS}
    made = {key: item for key, item in fields.items() if key not in _INPUTS}
    inputs = [Watched(leaf, path, None) for leaf, path in iter_leaves(given, name)]
    outputs = [Watched(leaf, path, None) for leaf, path in iter_leaves(made, name)]
    has_inputs = any(key in fields for key in _INPUTS)
    return find_nonfinite(name, inputs, outputs, list(given.values()) if has_inputs else None)


def iter_leaves(tree: Any, path: str) -> Iterator[tuple[TensorLeaf, str]]:
    """The tensors of a record, each with its path."""
    if isinstance(tree, TensorLeaf):
        yield tree, path
    elif isinstance(tree, dict):
        for key, item in tree.items():
            yield from iter_leaves(item, f"{path}.{key}")
    elif isinstance(tree, list):
        for number, item in enumerate(tree):
            yield from iter_leaves(item, f"{path}.{number}")


def is_spike(loss: float, before: Sequence[float], factor: float) -> bool:
    """Is it so many times the median of those before? Below zero, so many times as far from it. Losses that vary around
    zero have no such median: their usual distance from it counts then."""
    if not math.isfinite(loss):
        return True
    if len(before) < MIN_LOSSES:
        return False
    middle = median(before)
    usual = _SPREAD * median(abs(one - middle) for one in before)
    return loss - middle > (factor - 1) * max(abs(middle), usual)


def _value_of(leaf: TensorLeaf) -> float | None:
    stats = leaf.value.stats
    if stats is None:
        return None
    if stats.nan_count:
        return math.nan
    return None if stats.max is None else float(stats.max)
