"""The sketch of a tensor, computed where it lives: one pass over its elements, and nobody waits for it.

`torch.mv` is called with `out=`, which autocast leaves alone, and is exact to the precision of its dtype whatever the
program allows its matrix products.
"""

from __future__ import annotations

import torch

from tensorprobe.store.sketch import BLOCK, COUNT, column_sign, row_signs

_KNOWN_ROWS = 1 << 13
_WIDE = torch.float64


class Signs:
    """Of the columns, and of the first rows, on one device: computed there, for a copy would wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        with torch.inference_mode(False):
            columns = torch.arange(BLOCK, device=device)
            self.columns = torch.stack([column_sign(columns, index) for index in range(COUNT)]).to(_WIDE)
            rows = row_signs(torch.arange(_KNOWN_ROWS, device=device))
            self._rows = rows.to(_WIDE)

    def of_rows(self, start: int, count: int) -> torch.Tensor:
        if start + count <= _KNOWN_ROWS:
            return self._rows[start : start + count]
        signs: torch.Tensor = row_signs(torch.arange(start, start + count, device=self._device))
        return signs.to(_WIDE)


_signs: dict[torch.device, Signs] = {}


def signs_on(device: torch.device) -> Signs:
    signs = _signs.get(device)
    if signs is None:
        signs = _signs[device] = Signs(device)
    return signs


def sketch_into(flat: torch.Tensor, sums: torch.Tensor, start: int) -> None:
    """The four sums of the elements from `start` on, which begins a row, of any dtype and on any device."""
    if flat.is_complex():
        flat, start = torch.view_as_real(flat.clone()).view(-1), 2 * start  # the values of a CSR tensor have no view
    wide = flat.to(_WIDE)
    if flat.is_floating_point():
        wide = wide.masked_fill(~wide.isfinite(), 0.0)
    sums.copy_(project(wide, start // BLOCK))


def project(wide: torch.Tensor, first_row: int = 0) -> torch.Tensor:
    """The four sums of float64 numbers."""
    signs = signs_on(wide.device)
    rows, rest = divmod(wide.numel(), BLOCK)
    columns = torch.zeros(BLOCK, dtype=_WIDE, device=wide.device)
    if rows:
        torch.mv(wide[: rows * BLOCK].view(rows, BLOCK).t(), signs.of_rows(first_row, rows), out=columns)
    if rest:
        columns[:rest].add_(wide[rows * BLOCK :], alpha=row_signs(first_row + rows))
    return torch.mv(signs.columns, columns, out=torch.empty(COUNT, dtype=_WIDE, device=wide.device))
