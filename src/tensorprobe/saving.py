"""`save` and `save_grad`, with TroubleShooter's names: tensors as numbered .npy files, the same in both frameworks.

Importing this imports no framework, and yet MindSpore's graph compiler must be able to follow a call of `save` inside
`construct`, wherever the program took the function from, and if it imported MindSpore later. What the compiler reads is
the source below; `_bound` is an object whose attributes it asks for when it comes there, and they are MindSpore's as
soon as the program has imported it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any


class _Bound:
    """The functions for the frameworks that the program has imported by now."""

    __ms_class__ = True  # MindSpore's word for an object that its compiler may ask for attributes

    @property
    def save(self) -> Callable[..., None]:
        if "mindspore" in sys.modules:
            from tensorprobe.capture.mindspore.save_face import save

            return save
        from tensorprobe.capture.save_now import save_now

        return save_now

    @property
    def save_grad(self) -> Callable[..., Any]:
        if "mindspore" in sys.modules:
            from tensorprobe.capture.mindspore.save_face import save_grad

            return save_grad
        from tensorprobe.capture.save_now import save_grad_now

        return save_grad_now


_bound = _Bound()


def save(file: str | os.PathLike[str], data: Any, suffix: str | None = None, output_mode: str = "npy") -> None:
    """Save a tensor, or every tensor in a nesting of dict, list and tuple, as it is now.

    `file` is a folder and a name: `save("./out/dense", x)` writes `./out/0_dense.npy`. The number counts what this
    process saves, in all folders. With `output_mode="print"` the tensor is printed instead.
    """
    _bound.save(file, data, suffix, output_mode)


def save_grad(
    file: str | os.PathLike[str], data: Any, suffix: str | None = "backward", output_mode: str = "npy"
) -> Any:
    """Save the gradient of a tensor when it comes. Returns the tensor, which must be passed on in its place.

    `x = save_grad("./out/dense", x)` writes `./out/1_dense_backward.npy` during the backward.
    """
    return _bound.save_grad(file, data, suffix, output_mode)
