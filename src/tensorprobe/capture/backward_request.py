"""For which gradients the backward engine was asked in a step, and which of them are averaged over ranks unseen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from tensorprobe.model.record import TensorLeaf

_MAX_REQUESTS = 4096

Request = Mapping[str, Any]


class BackwardRequests:
    """In their order, as JSON: a step may have no end, and text is small."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self.losses: list[TensorLeaf] = []
        """Scalars whose gradients were asked for, where somebody wants to know."""
        self.reductions: list[Request] = []
        """The gradients that are averaged over ranks where nothing can be seen: of which parameters, when."""

    def __len__(self) -> int:
        return len(self._texts)

    def add(self, request: Request) -> Callable[[Request], None]:
        """Gradients are asked for. What is returned is told what is known afterwards."""
        place = len(self._texts)
        if place >= _MAX_REQUESTS:
            return lambda complete: None
        self._texts.append(json.dumps(request))

        def complete(request: Request) -> None:
            self._texts[place] = json.dumps(request)

        return complete

    def add_reduction(self, reduction: Request) -> None:
        """The next backward pass ends in an average over ranks, where nothing can be seen."""
        if len(self.reductions) < _MAX_REQUESTS:
            self.reductions.append(reduction)

    def as_list(self) -> list[Any]:
        """For run.json."""
        return [json.loads(text) for text in self._texts]
