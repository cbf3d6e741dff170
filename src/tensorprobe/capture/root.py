"""The models of a program that nobody has named: whatever it calls outermost. They are held weakly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Roots:
    """The models that were called outermost so far, in the order of their first call, and what they are called: the
    first one nothing, as a model that is given to `start`; each further one as its class."""

    def __init__(self, before_call: Callable[[Any], bool], is_model: Callable[[Any], bool]) -> None:
        self.is_model = is_model
        self.before_call = before_call
        """Asked before a model is called outermost: True if the window that was open has been closed."""
        self._references: list[tuple[str, weakref.ref[Any]]] = []

    def adopt(self, model: Any) -> str | None:
        """The name of one more; None if it is known already, or is no model."""
        if not self.is_model(model):
            return None
        self._references = [(name, reference) for name, reference in self._references if reference() is not None]
        if any(reference() is model for _, reference in self._references):
            return None
        name = self._find_name(type(model).__name__)
        self._references.append((name, weakref.ref(model)))
        return name

    def models(self) -> list[tuple[str, Any]]:
        """Those that are still there."""
        held = [(name, reference()) for name, reference in self._references]
        return [(name, model) for name, model in held if model is not None]

    def _find_name(self, kind: str) -> str:
        taken = {name for name, _ in self._references}
        candidates = ("", kind, *(f"{kind}_{number}" for number in range(1, len(taken) + 1)))
        return next(name for name in candidates if name not in taken)
