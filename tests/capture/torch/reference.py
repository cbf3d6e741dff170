"""Tensors of every dtype, and what their statistics must be: numpy's, in float64."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch

from tensorprobe.model.record import Stats

FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
FLOATS_8 = (
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
    torch.float8_e8m0fnu,
)
SIGNED = (torch.int8, torch.int16, torch.int32, torch.int64)
UNSIGNED = (torch.uint8, torch.uint16, torch.uint32, torch.uint64)
COMPLEX = (torch.complex32, torch.complex64, torch.complex128)
ALL_DTYPES = (*FLOATS, *FLOATS_8, *SIGNED, *UNSIGNED, torch.bool, *COMPLEX)
NAN, INF = math.nan, math.inf


def make_tensor(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Numbers of every sign that the dtype has, without NaN and Inf."""
    generator = torch.Generator().manual_seed(sum(shape) + len(shape))
    numbers = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    if dtype.is_complex:
        return torch.complex(numbers, numbers.flip(0) if shape else -numbers).to(dtype)
    if dtype in UNSIGNED or dtype is torch.float8_e8m0fnu:
        numbers = numbers.abs()
    if dtype is torch.bool:
        return numbers > 1
    return (numbers if dtype.is_floating_point else numbers * 10).to(dtype)


def numbers_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """All elements as float64; of complex numbers the magnitude."""
    if tensor.is_complex():
        return np.abs(tensor.resolve_conj().to(torch.complex128).numpy())
    return tensor.resolve_neg().to(torch.float64).numpy()


def check_stats(stats: Stats, numbers: np.ndarray[Any, Any]) -> None:
    """`numbers` are all elements, in float64. Exact extremes and counts, Mean and Norm to one part in a million."""
    assert stats.reason is None
    assert (stats.nan_count, stats.inf_count) == (int(np.isnan(numbers).sum()), int(np.isinf(numbers).sum()))
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # numpy warns of NaN only
        largest = np.nanmax(np.abs(numbers))
        scale = largest if 0 < largest < INF else 1.0
        norm = float(np.sqrt(np.nansum((numbers / scale) ** 2)) * scale)
        assert_same(stats.max, np.nanmax(numbers))
        assert_same(stats.min, np.nanmin(numbers))
        assert_close(stats.mean, np.nanmean(numbers), np.nanmean(np.abs(numbers)))
        assert_close(stats.norm, NAN if np.isnan(numbers).all() else norm, norm)


def assert_same(candidate: Any, reference: float) -> None:
    """Two ways to a magnitude differ in the last bit of a float64."""
    assert math.isclose(candidate, reference, rel_tol=1e-15) or (math.isnan(candidate) and math.isnan(reference))


def assert_close(candidate: Any, reference: float, scale: float) -> None:
    if math.isfinite(reference):
        assert abs(candidate - reference) <= 1e-6 * scale
    else:
        assert_same(candidate, reference)
