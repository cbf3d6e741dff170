"""What capture computes is nobody's business: neither the modes and subclasses of the program see it, nor capture's own
mode. The framework is asked for such a place thousands of times a step, and nearly always there is nothing to hide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

_without_functions = torch._C.DisableTorchFunction
is_function_off = getattr(torch._C, "_is_torch_function_all_disabled", lambda: False)  # not in torch 2.4
count_dispatch_modes = torch._C._len_torch_dispatch_stack
transforms = torch._C._functorch.peek_interpreter_stack


def hidden() -> AbstractContextManager[Any]:
    """Inside, no `__torch_function__` and no mode of the program is called."""
    return _without_modes() if count_dispatch_modes() else _without_functions()


def is_hidden() -> bool:
    """Are we inside such a place already, with no mode of the program to hide from?"""
    return is_function_off() and not count_dispatch_modes()


def isolated() -> AbstractContextManager[Any]:
    """The same, and no transform of torch.func takes part either."""
    return hidden() if transforms() is None else _without_transforms()


@contextmanager
def _without_modes() -> Iterator[None]:
    from torch.utils._python_dispatch import _disable_current_modes

    with _without_functions(), _disable_current_modes():
        yield


@contextmanager
def _without_transforms() -> Iterator[None]:
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    with temporarily_clear_interpreter_stack(), hidden():
        yield
