"""What kernels that are no function of torch compute, as plain functions of torch: given by the user, by an installed
package, or built in.

Importing this file imports no framework. A name in a dump is looked up here and never evaluated.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from tensorprobe.errors import UsageError

ENTRY_POINT_GROUP = "tensorprobe.meanings"
"""An installed package gives meanings by entry points of this group: the name is that of the call, the value the
function."""
_STEM = re.compile(r"[A-Z][A-Za-z]*(?:\.\w+)+", re.ASCII)
_RECORD = re.compile(r"(.+)\.\d+\.(?:forward|backward|recompute)", re.ASCII)

Function = TypeVar("Function", bound=Callable[..., Any])


class MeaningError(Exception):
    """What was given as the meaning of a call does not fit it. The message is for the user as it stands."""


@dataclass(frozen=True)
class KernelMeaning:
    """What one call computes."""

    stem: str
    """`Autograd.FlashAttnFunc`"""
    function: Callable[..., Any]
    is_built_in: bool

    @property
    def description(self) -> str:
        """Which function it is, for a message."""
        if self.is_built_in:
            return "built in"
        name = getattr(self.function, "__qualname__", type(self.function).__name__)
        return f"{getattr(self.function, '__module__', '')}.{name}".removeprefix("__main__.").strip(".")


_GIVEN: dict[str, Callable[..., Any]] = {}
_BUILT_IN: dict[str, Callable[..., Any]] = {}


def meaning(*names: str) -> Callable[[Function], Function]:
    """Say what a kernel computes: `@tensorprobe.meaning("Autograd.FlashAttnFunc")` on a plain function of torch.

    `names` are those of records without number and direction. The function is called with the recorded arguments, all
    floating-point tensors in float64, and returns what the kernel returns: as many results, of the same shapes; None in
    place of one that it does not know. It wins over a meaning that is built in.
    """
    for name in names:
        _check_name(name)
    if not names:
        raise UsageError('tensorprobe.meaning needs the name of a call, such as "Autograd.FlashAttnFunc"')

    def give(function: Function) -> Function:
        _GIVEN.update(dict.fromkeys(names, function))
        return function

    return give


def _check_name(name: str) -> None:
    record = _RECORD.fullmatch(name) if isinstance(name, str) else None
    if record is not None:
        raise UsageError(
            f"{name!r} is one call: leave out its number and direction, tensorprobe.meaning({record[1]!r})"
        )
    if not isinstance(name, str) or not _STEM.fullmatch(name):
        raise UsageError(
            f"{name!r} is not the name of a call: write it as `tensorprobe show` has it, without number and "
            'direction, such as "Autograd.FlashAttnFunc" or "Ops.mylib.my_kernel"'
        )


def build_in(*names: str) -> Callable[[Function], Function]:
    """The same for the meanings that come with tensorprobe."""

    def give(function: Function) -> Function:
        _BUILT_IN.update(dict.fromkeys(names, function))
        return function

    return give


def find_kernel_meaning(prefix: str, op: str) -> KernelMeaning | None:
    """What a call computes, where somebody has said it: the user, then an installed package, then tensorprobe.
    MeaningError where a package's function cannot be imported."""
    from tensorprobe.replay.meaning import kernel

    kernel.build_in_all()
    stems = [f"{prefix}.{op}"]
    if prefix == "Ops" and op.count(".") > 1:  # without its overload
        stems.append(f"{prefix}.{op.rpartition('.')[0]}")
    for stem in stems:
        if stem in _GIVEN:
            return KernelMeaning(stem, _GIVEN[stem], is_built_in=False)
    for stem in stems:
        found = _load_entry(stem)
        if found is not None:
            return KernelMeaning(stem, found, is_built_in=False)
    for stem in stems:
        if stem in _BUILT_IN:
            return KernelMeaning(stem, _BUILT_IN[stem], is_built_in=True)
    return None


def _load_entry(stem: str) -> Callable[..., Any] | None:
    """The function of an installed package. Nothing is imported before a dump has a call of this name."""
    entry = list_entries().get(stem)
    if entry is None:
        return None
    try:
        found = entry.load()
    except Exception as error:  # whatever importing somebody's package raises
        raise MeaningError(
            f"its meaning, {entry.value} of an installed package, cannot be imported ({type(error).__name__}: {error})"
        ) from error
    if not callable(found):
        raise MeaningError(f"its meaning, {entry.value} of an installed package, is no function")
    return found  # type: ignore[no-any-return]


@cache
def list_entries() -> dict[str, EntryPoint]:
    """What installed packages give. Looking it up takes a while, and it does not change."""
    return {entry.name: entry for entry in entry_points(group=ENTRY_POINT_GROUP)}


def load_meanings(path: Path) -> None:
    """Run a Python file of the user that gives meanings."""
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"{path} is not a Python file: name one that gives meanings with @tensorprobe.meaning")
    before = dict(_GIVEN)
    try:
        runpy.run_path(str(path), run_name=path.stem)  # from its text: what was compiled of it before may be older
    except Exception as error:
        raise UsageError(f"{path} could not be run ({type(error).__name__}: {error})") from error
    if before == _GIVEN:
        raise UsageError(f"{path} gives no meaning: put @tensorprobe.meaning(NAME) on a function in it")
