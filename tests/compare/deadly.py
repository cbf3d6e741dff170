"""A record that ends the process which measures it, as the system does when memory runs out."""

from __future__ import annotations

import os
import signal
from typing import Any


class DeadlyShape(tuple[int, ...]):
    """Ends the process that looks at it, unless that is the one that made it."""

    maker: int

    def __new__(cls, shape: tuple[int, ...], maker: int | None = None) -> DeadlyShape:
        made = super().__new__(cls, shape)
        made.maker = maker or os.getpid()
        return made

    def __reduce__(self) -> Any:
        return DeadlyShape, (tuple(self), self.maker)

    __hash__ = tuple.__hash__

    def __eq__(self, other: object) -> bool:
        self._strike()
        return tuple(self) == other

    def __ne__(self, other: object) -> bool:
        self._strike()
        return tuple(self) != other

    def _strike(self) -> None:
        if os.getpid() != self.maker:
            os.kill(os.getpid(), signal.SIGKILL)
