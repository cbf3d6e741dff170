"""Hooks on tensors of the user: as MindSpore's compiler sees them, they do nothing.

It compiles the hooks of a parameter into the functions that use it, from their source. Ours are no business of a graph:
they show it the source of another function.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Hook = Callable[[Any], None]


def pass_gradient(gradient):  # type: ignore[no-untyped-def]  # as the compiler reads it
    return gradient


def hook_tensor(tensor: Any, hook: Hook) -> Any:
    """Have `hook` called with the gradient of a tensor; what is returned has `remove`."""
    hook.__wrapped__ = pass_gradient  # type: ignore[attr-defined]
    return tensor.register_hook(hook)
