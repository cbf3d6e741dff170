"""What can be chosen about a check; validated once."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from typing import Any

from tensorprobe.compare.option import CompareOptions, make_options
from tensorprobe.errors import UsageError

_OF_COMPARE = ("mapping", "rtol", "atol", "first", "processes", "by", "allow_uncompared")


@dataclass(frozen=True)
class CheckOptions:
    """The defaults record all calls with their tensors, forward and backward."""

    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Inputs by keyword, for both sides."""
    loss: Callable[[Any], Any] | None = None
    """Makes of what a side returns what is differentiated."""
    backward: bool = True
    level: str | None = None
    """None: mix where both sides have a model, else L1."""
    task: str = "tensor"
    seed: int = 1234
    """Both sides begin with it; the caller's random state comes back afterwards."""
    keep: str | os.PathLike[str] | None = None
    """A folder for the two dumps; without it they are removed."""
    dtype: Any = None
    """Of the candidate: its model and inputs are converted."""
    device: Any = None
    setting: AbstractContextManager[Any] | None = None
    """The candidate runs inside of it: torch.autocast("cpu", torch.bfloat16)."""
    compare: CompareOptions = field(default_factory=CompareOptions)

    def __post_init__(self) -> None:
        if not isinstance(self.kwargs, Mapping) or not all(isinstance(name, str) for name in self.kwargs):
            raise UsageError(f"kwargs is {self.kwargs!r}. Give a dict of names and inputs, or leave it out.")
        if self.loss is not None and not callable(self.loss):
            raise UsageError(f"loss is {self.loss!r}. Give a function of what both sides return, or leave it out.")
        if not isinstance(self.backward, bool):
            raise UsageError(f"backward is {self.backward!r}. Give True or False, or leave it out.")
        if self.setting is not None and not hasattr(self.setting, "__enter__"):
            raise UsageError(
                f"setting is {self.setting!r}. Give a context manager in which the candidate runs, such as "
                'torch.autocast("cpu", torch.bfloat16), or leave it out.'
            )


def make_check_options(given: Mapping[str, Any]) -> CheckOptions:
    """Options by name; UsageError for a name that is none."""
    own = [one.name for one in fields(CheckOptions) if one.name != "compare"]
    unknown = [name for name in given if name not in (*own, *_OF_COMPARE)]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not an option of check. Options: {', '.join((*own, *_OF_COMPARE))}.")
    compare = make_options({name: value for name, value in given.items() if name in _OF_COMPARE})
    found = CheckOptions(**{name: value for name, value in given.items() if name in own}, compare=compare)
    is_other = found.dtype is not None or found.setting is not None  # autocast, for example
    return replace(found, compare=replace(compare, other_dtype=is_other))
