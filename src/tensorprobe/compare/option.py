"""What can be chosen about a comparison; validated once."""

from __future__ import annotations

from dataclasses import dataclass, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tensorprobe.errors import UsageError

ENGINES = ("local", "ray")
JUDGES = ("auto", "truth", "growth")
DEFAULT_RTOL = DEFAULT_ATOL = 1e-4


@dataclass(frozen=True)
class CompareOptions:
    """The defaults need no thought: an error is judged by what the errors of a call's inputs explain."""

    mapping: str | Path | dict[str, Any] | None = None
    """A YAML file, or its content."""
    step: int | None = None
    rank: int | None = None
    rtol: float | None = None
    """With rtol or atol, a value is close when |reference - candidate| <= atol + rtol * |reference|, else different."""
    atol: float | None = None
    first: bool = False
    """Stop at the first source."""
    processes: int | None = None
    """None: as many as there are cores and work for them."""
    by: str = "auto"
    """auto: by truth where both steps can be replayed, else by the growth of errors; truth; growth."""
    allow_uncompared: bool = False
    """Runs may agree although something that their results depend on could not be compared."""
    own_errors: bool = False
    """Also say how far each run is from its own truth, which a page shows; what was recorded is read for it again."""
    other_dtype: bool = False
    """The candidate was asked to compute in another dtype: that a value has another one is no difference by itself, and
    the coarser of the two says what rounding does. `check` asks for it."""
    engine: str = "local"
    """Where tensors are measured: local, in processes of this machine; ray, or ray://head:10001, on a cluster."""

    def __post_init__(self) -> None:
        for name in ("rtol", "atol"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value, Real) and value >= 0):
                raise UsageError(f"{name} is {value!r}. Give a number that is not negative, or leave it out.")
        for name in ("step", "rank"):
            value = getattr(self, name)
            if value is not None and not _is_number(value, Integral):
                raise UsageError(f"{name} is {value!r}. Give one whole number, or leave it out.")
        for name in ("first", "allow_uncompared", "own_errors", "other_dtype"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} is {getattr(self, name)!r}. Give True or False, or leave it out.")
        if not isinstance(self.engine, str) or not (self.engine in ENGINES or self.engine.startswith("ray://")):
            raise UsageError(f"engine is {self.engine!r}. Give local, ray or ray://HOST:PORT, or leave it out.")
        if self.by not in JUDGES:
            raise UsageError(f"by is {self.by!r}. Give one of {', '.join(JUDGES)}, or leave it out.")
        if self.processes is not None and not (_is_number(self.processes, Integral) and self.processes >= 1):
            raise UsageError(f"processes is {self.processes!r}. Give 1 or more, or leave it out.")

    @property
    def has_fixed_tolerance(self) -> bool:
        return self.rtol is not None or self.atol is not None


def _is_number(value: Any, kind: type) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def make_options(given: dict[str, Any]) -> CompareOptions:
    """Options by name; UsageError for a name that is none."""
    known = [field.name for field in fields(CompareOptions)]
    unknown = [name for name in given if name not in known]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not an option of compare. Options: {', '.join(known)}.")
    return CompareOptions(**given)
