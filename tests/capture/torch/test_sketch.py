"""A tensor has the sketch that numpy computes of its elements, whatever its dtype, its layout and its size."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tensorprobe.capture.torch import sketch as sketches
from tensorprobe.capture.torch import statistics
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.statistics import DeviceBuffer, Extent
from tensorprobe.model.record import Stats
from tensorprobe.store.sketch import BLOCK, COUNT, sketch_array
from tests.capture.torch.reference import ALL_DTYPES, INF, NAN, make_tensor
from tests.capture.way import way  # noqa: F401

SIZES = (1, 7, 4096, 4097, 20 * BLOCK, 200_001, 600_000, 1_300_000)


def read(tensor: torch.Tensor) -> Stats:
    reader = TorchReader(has_stats=True, digest_kind=None)
    leaf = reader.read(tensor, None)
    reader.fetch()
    assert leaf.value.stats is not None
    return leaf.value.stats


def check(stats: Stats, tensor: torch.Tensor) -> None:
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    array = tensor.resolve_conj().resolve_neg().to(wide).numpy()
    size = float(np.linalg.norm(array[np.isfinite(array)]))
    assert stats.sketch == pytest.approx(sketch_array(array), abs=1e-6 * size)


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_every_dtype_has_the_sketch_of_its_numbers(dtype: torch.dtype) -> None:
    for shape in ((), (3, 5), (2, 3, 1024)):
        tensor = make_tensor(dtype, shape)
        check(read(tensor), tensor)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int32], ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_every_size_has_the_sketch_of_its_numbers(size: int, dtype: torch.dtype) -> None:
    tensor = make_tensor(dtype, (size,))
    check(read(tensor), tensor)
    check(read(tensor + 100), tensor + 100)


@pytest.mark.parametrize("size", [BLOCK, 5000, 300_007])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_the_threads_of_torch_give_the_same_statistics_and_sketch(
    size: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = make_tensor(dtype, (size,)) + 3
    alone = read(tensor)
    monkeypatch.setattr(statistics, "_SMALL", 0)
    monkeypatch.setattr(statistics, "_THREADED", 0)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = read(tensor)
    finally:
        torch.set_num_threads(before)
    check(together, tensor)
    assert (together.max, together.min) == (alone.max, alone.min)
    assert (together.mean, together.norm) == pytest.approx((alone.mean, alone.norm), rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 3.7, 1e18, 1e-18])
def test_equal_numbers_are_added_up_without_a_drift(value: float) -> None:
    tensor = torch.full((1_000_000,), value)
    stats, exact = read(tensor), float(tensor[0])
    check(stats, tensor)
    assert (stats.mean, stats.norm) == pytest.approx((exact, exact * 1000.0), rel=1e-6)


def test_the_product_with_the_signs_is_too_small_for_numpy_to_start_threads() -> None:
    """They compete with those of torch: a reduction took 300 times as long on a busy machine."""
    assert COUNT * BLOCK < 2304 * 4  # where OpenBLAS, which numpy brings, starts its threads


def test_the_layout_in_memory_does_not_matter() -> None:
    base = make_tensor(torch.float32, (6, 50, 70))
    for view in (base.permute(2, 0, 1), base[:, 3:40, ::2], base.transpose(1, 2), base[:1].expand(5, 50, 70)):
        check(read(view), view)
        assert read(view).sketch == read(view.contiguous()).sketch


def test_a_view_in_another_order_of_a_value_that_is_known_has_a_sketch_of_its_own() -> None:
    reader = TorchReader(has_stats=True, digest_kind=None)
    tensor = make_tensor(torch.float32, (30, 40))
    for view in (tensor, tensor.t(), tensor.view(40, 30), tensor.view(40, 30).t(), tensor.t()):
        leaf = reader.read(view, "Torch.randn.0.forward")
        assert leaf.value.stats is not None
        check(leaf.value.stats, view)


@pytest.mark.parametrize("size", [10, 5000])
def test_nan_and_infinities_are_left_out(size: int) -> None:
    tensor = make_tensor(torch.float32, (size,))
    tensor[1], tensor[4], tensor[7] = NAN, INF, -INF
    check(read(tensor), tensor)


def test_autocast_and_fast_matrix_products_do_not_cost_digits() -> None:
    tensor = make_tensor(torch.float32, (700_000,))
    expected = read(tensor).sketch
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found = read(tensor)
    finally:
        torch.set_float32_matmul_precision(before)
    assert found.sketch == expected
    check(found, tensor)


def test_zeros_without_memory_have_a_sketch() -> None:
    zeros = torch._efficientzerotensor((5000,))
    assert read(zeros).sketch == [0.0] * 4


def test_an_expanded_tensor_is_not_written_out_for_a_sketch_where_it_would_be_large() -> None:
    stats = read(torch.ones(1).expand(1 << 40))
    assert (stats.max, stats.sketch) == (1.0, None)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_a_sparse_tensor_has_one_only_if_nothing_is_missing() -> None:
    dense = make_tensor(torch.float32, (20, 30))
    check(read(dense.to_sparse_csc()), dense)
    dense[3] = 0.0
    assert read(dense.to_sparse_csc()).sketch is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool, torch.complex64], ids=str)
def test_the_device_path_gives_the_same_sketch(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_DEVICE_CHUNK", 3 * BLOCK)
    monkeypatch.setattr(sketches, "_KNOWN_ROWS", 2)
    monkeypatch.setattr(sketches, "_signs", {})
    buffer = DeviceBuffer(torch.device("cpu"))
    tensor = make_tensor(dtype, (100, 101)).t()
    stats = buffer.add(tensor, Extent(dtype, tensor.numel()))
    buffer.fetch()
    check(stats, tensor)


def test_sums_that_overflow_float32_do_not_end_the_sketch() -> None:
    tensor = torch.full((5000,), 2e37)
    check(read(tensor), tensor)


def test_the_storage_of_the_users_tensor_can_still_be_resized() -> None:
    tensor = make_tensor(torch.float32, (5000,))
    read(tensor)
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0
