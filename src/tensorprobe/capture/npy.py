"""`.npy` files as `np.save` writes them, whose own way of writing to a file forgets why a disk refused."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np


def write_npy(file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], elements: Any) -> None:
    """`elements`: the bytes of an array of this dtype and shape, in C order."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call]
    file.write(elements)
