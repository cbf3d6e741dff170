"""Which tensor is it? A number for each object that the program holds, for as long as it lives.

Two tensors may share memory and layout and yet be two places in the graph of gradients: `x` and `x.view_as(x)`. Only
the object tells them apart. Objects are held weakly, so that an address is not taken for the tensor that was there
before.
"""

from __future__ import annotations

import weakref
from itertools import count
from typing import Any

_SWEEP_SIZE = 8192


class TensorNumbers:
    """The numbers of the tensors that were seen in the current step."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._numbers = count()
        self._sweep_at = _SWEEP_SIZE

    def __len__(self) -> int:
        return len(self._known)

    def number(self, tensor: Any) -> int:
        """The number of this object; a new one when it is seen for the first time."""
        known = self._known.get(id(tensor))
        if known is not None and known[0]() is tensor:
            return known[1]
        if len(self._known) >= self._sweep_at:
            self._sweep()
        number = next(self._numbers)
        self._known[id(tensor)] = weakref.ref(tensor), number
        return number

    def _sweep(self) -> None:
        self._known = {address: known for address, known in self._known.items() if known[0]() is not None}
        self._sweep_at = max(_SWEEP_SIZE, 2 * len(self._known))
