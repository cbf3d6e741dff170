"""What a reader of another tool's dumps finds, and how it puts it into words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MODULES, BY_PATH = "modules", "path"
"""In the header of a dump that knows of its modules nothing but their paths: no classes, and not all of them."""
Records = dict[str, Any]
"""Names, and what dump.json or debug.json would hold for them."""


@dataclass(frozen=True)
class ForeignStep:
    """One step of one process."""

    path: Path
    """The file that it is read from."""
    step: int | None
    rank: int | None
    read: Callable[[], tuple[Records, Records]] = field(compare=False)
    """Its calls, and its saved values; called when somebody asks for them."""
    header: Mapping[str, Any] = field(default_factory=dict)
    """task, and what else differs from a module dump of PyTorch."""

    @property
    def folder(self) -> Path:
        return self.path.parent


def make_leaf(dtype: str, shape: tuple[int, ...], **more: Any) -> dict[str, Any]:
    """A tensor as a record says it; `data_name` names its content, if there is any."""
    return {"type": "torch.Tensor", "dtype": f"torch.{dtype}", "shape": list(shape), **more}
