"""The sketch of a tensor, computed where it lives: one pass over its elements, and nobody waits for it.

`torch.mv` is called with `out=`, which autocast leaves alone, and is exact to the precision of its dtype whatever the
program allows its matrix products.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tensorprobe.store.sketch import BLOCK, COUNT, column_sign, column_signs, finite_sketch, row_signs

Array = np.ndarray[Any, Any]

_ROWS = 256
"""So many rows are added in the tensor's own precision, and such sums in float64: the error stays below 1e-6 of the
norm."""
_CACHED_ROWS = 128
"""So many stay in the cache."""
_KNOWN_ROWS = 32 * _ROWS
_THREADED = 1 << 19
"""From so many elements on, the threads of torch are worth their calls."""
_WIDE = torch.float64
_FLOATS: dict[torch.dtype, np.dtype[Any]] = {torch.float32: np.dtype(np.float32), _WIDE: np.dtype(np.float64)}


class Signs:
    """Of the columns, and of the first rows, on one device: computed there, for a copy would wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.inference_mode(False):
            columns = torch.arange(BLOCK, device=device)
            self.columns = torch.stack([column_sign(columns, index) for index in range(COUNT)]).to(_WIDE)
            rows = row_signs(torch.arange(_KNOWN_ROWS, device=device))
            self._rows = {dtype: rows.to(dtype) for dtype in _FLOATS}

    def of_rows(self, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
        if start + count <= _KNOWN_ROWS:
            return self._rows[dtype][start : start + count]
        signs: torch.Tensor = row_signs(torch.arange(start, start + count, device=self._device))
        return signs.to(dtype)


_signs: dict[torch.device, Signs] = {}
_host_rows = {dtype: row_signs(np.arange(_THREADED // BLOCK + 1)).astype(kind) for dtype, kind in _FLOATS.items()}


class Memory:
    """Elements that belong to a tensor, for numpy to look at. `numpy()` would fix the size of the user's storage."""

    __slots__ = ("__array_interface__",)

    def __init__(self, address: int, count: int, dtype: torch.dtype) -> None:
        kind = _FLOATS[dtype].str
        self.__array_interface__ = {"data": (address, True), "shape": (count,), "typestr": kind, "version": 3}


def sketch_finite(flat: torch.Tensor) -> list[float] | None:
    """Of a tensor on the host, of float32 or float64, contiguous and all of it finite."""
    count, address = flat.numel(), flat.data_ptr()
    if count > _THREADED or not address:  # zeros that autograd keeps no memory for
        return finite_sketch(project(flat).tolist())
    array: Array = np.asarray(Memory(address, count, flat.dtype))
    rows, rest = divmod(count, BLOCK)
    signs = _host_rows[flat.dtype]
    columns = np.zeros(BLOCK)
    for start in range(0, rows, _CACHED_ROWS):
        stop = min(start + _CACHED_ROWS, rows)
        part = array[start * BLOCK : stop * BLOCK].reshape(stop - start, BLOCK)
        columns += np.einsum("rc,r->c", part, signs[start:stop])
    if rest:
        columns[:rest] += signs[rows] * array[rows * BLOCK :]
    return finite_sketch(column_signs().dot(columns).tolist())


def sketch_into(flat: torch.Tensor, sums: torch.Tensor, start: int) -> None:
    """The four sums of the elements from `start` on, which begins a row, of any dtype and on any device."""
    if flat.is_complex():
        flat, start = torch.view_as_real(flat.clone()).view(-1), 2 * start  # the values of a CSR tensor have no view
    wide = flat.to(_WIDE)
    if flat.is_floating_point():
        wide = wide.masked_fill(~wide.isfinite(), 0.0)
    sums.copy_(project(wide, start // BLOCK))


def project(flat: torch.Tensor, first_row: int = 0) -> torch.Tensor:
    """The four sums, in float64."""
    device, dtype = flat.device, flat.dtype
    signs = _signs.get(device)
    if signs is None:
        signs = _signs[device] = Signs(device)
    rows, rest = divmod(flat.numel(), BLOCK)
    columns = torch.zeros(BLOCK, dtype=_WIDE, device=device)
    sums = torch.empty(BLOCK, dtype=dtype, device=device)
    for start in range(0, rows, _ROWS):
        count = min(_ROWS, rows - start)
        part = flat[start * BLOCK : (start + count) * BLOCK].view(count, BLOCK)
        columns.add_(torch.mv(part.t(), signs.of_rows(first_row + start, count, dtype), out=sums))
    if rest:
        columns[:rest].add_(flat[rows * BLOCK :], alpha=row_signs(first_row + rows))
    return torch.mv(signs.columns, columns, out=torch.empty(COUNT, dtype=_WIDE, device=device))
