"""A parameter or buffer of a network, as far as names go; its numbers are elsewhere."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Weight:
    """One entry of a state_dict, or one Parameter of a Cell."""

    name: str
    """`encoder.layers.0.norm1.gamma`"""
    shape: tuple[int, ...]
    dtype: str
    """`float32`, `bfloat16`"""
    kinds: tuple[str, ...] = ()
    """The classes of the modules around it, from the outermost on: as many as its name has parts, or none."""
    memory: Hashable = None
    """Equal for weights that share their memory; None where that is not known."""

    @property
    def path(self) -> str:
        """The layer that it belongs to."""
        return self.name.rpartition(".")[0]

    @property
    def leaf(self) -> str:
        """Its own name in that layer."""
        return self.name.rpartition(".")[2]

    @property
    def kind(self) -> str | None:
        """The class of that layer."""
        return self.kinds[-1] if self.kinds else None
