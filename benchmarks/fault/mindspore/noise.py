"""Legitimate differences between two runs: products and softmax summed in another order, or in float64.

The functions are replaced before capture sees them, as another device would have them: names, calls and stacks stay the
same, and the results differ by rounding. The backward runs through them too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import mindspore
from mindspore import Tensor, mint, ops

Kernel = Callable[..., Tensor]
Kernels = dict[tuple[Any, str], Callable[[Kernel], Kernel]]


@contextmanager
def other_kernels(kernels: Kernels) -> Iterator[None]:
    before = {place: getattr(*place) for place in kernels}
    try:
        for (owner, name), make in kernels.items():
            original = before[owner, name]
            setattr(owner, name, functools.update_wrapper(make(original), original))
        yield
    finally:
        for (owner, name), original in before.items():
            setattr(owner, name, original)


def split_product(matmul: Kernel) -> Kernel:
    """The sum of the products of two halves, the second first."""

    def run(a: Tensor, b: Tensor) -> Tensor:
        half = a.shape[-1] // 2
        return matmul(a[..., half:], b[..., half:, :]) + matmul(a[..., :half], b[..., :half, :])

    return run


def split_dense(dense: Kernel) -> Kernel:
    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        half = x.shape[-1] // 2
        y = dense(x[..., half:], weight[:, half:]) + dense(x[..., :half], weight[:, :half])
        return y if bias is None else y + bias

    return run


def in_float64(kernel: Kernel) -> Kernel:
    """Summed in float64 and rounded once: a better kernel."""

    def run(*args: Any) -> Tensor:
        is_tensor = [isinstance(value, Tensor) for value in args]
        wide = [value.astype(mindspore.float64) if one else value for value, one in zip(args, is_tensor, strict=True)]
        return kernel(*wide).astype(args[0].dtype)

    return run


_LINEAR = (mint.nn.functional, "linear")
_SPLIT: Kernels = {
    (ops, "matmul"): split_product,
    (mint, "matmul"): split_product,
    (ops, "dense"): split_dense,
    _LINEAR: split_dense,
}
_WIDE: Kernels = {**dict.fromkeys(_SPLIT, in_float64), (ops, "softmax"): in_float64}

NOISES: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "": nullcontext,
    "split": lambda: other_kernels(_SPLIT),
    "wide": lambda: other_kernels(_WIDE),
}
