"""Max, Min, Mean and Norm are those that numpy gets in float64, for every tensor; or the record says why not."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.capture.torch import statistics
from tensorprobe.capture.torch.reader import TorchReader
from tensorprobe.capture.torch.reducer import Reducer
from tensorprobe.capture.torch.statistics import DeviceBuffer, Extent, in_one_line, merge_rows
from tensorprobe.model.record import Stats
from tensorprobe.store.sketch import BLOCK
from tests.capture.torch.reference import (
    ALL_DTYPES,
    FLOATS,
    INF,
    NAN,
    SIGNED,
    UNSIGNED,
    assert_close,
    check_stats,
    make_tensor,
    numbers_of,
)
from tests.capture.way import way  # noqa: F401
from tests.length import count_examples

SHAPES = ((), (1,), (7,), (3, 5), (512,), (513,), (2, 3, 1024), (1, 1300))


def read(tensor: torch.Tensor) -> Stats:
    """The statistics that a record of the tensor has."""
    reader = TorchReader(has_stats=True, digest_kind=None)
    stats = reader.read(tensor, None).value.stats
    reader.fetch()
    assert stats is not None
    return stats


# -- every dtype and layout --------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_statistics_of_every_dtype(dtype: torch.dtype) -> None:
    for shape in SHAPES:
        tensor = make_tensor(dtype, shape)
        check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.parametrize("dtype", [*SIGNED, *UNSIGNED], ids=str)
def test_extremes_of_integers_are_integers_and_exact(dtype: torch.dtype) -> None:
    limits = torch.iinfo(dtype)
    stats = read(torch.tensor([limits.min, 3, limits.max], dtype=dtype))
    assert (stats.max, stats.min) == (limits.max, limits.min)
    assert type(stats.max) is type(stats.min) is int


def test_integers_beyond_2_to_the_53_are_exact() -> None:
    stats = read(torch.tensor([2**53 + 1, -(2**62) - 1]))
    assert (stats.max, stats.min) == (2**53 + 1, -(2**62) - 1)


@pytest.mark.parametrize(
    ("truths", "largest", "smallest"),
    [([True], True, True), ([False, False], False, False), ([True, False, True], True, False)],
)
def test_truth_values(truths: list[bool], largest: bool, smallest: bool) -> None:
    stats = read(torch.tensor(truths))
    assert stats.max is largest
    assert stats.min is smallest
    check_stats(stats, np.array(truths, dtype=np.float64))


VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda x: x.transpose(0, 2),
    "permuted": lambda x: x.permute(1, 2, 0),
    "sliced with gaps": lambda x: x[:, ::2, 1:],
    "one column": lambda x: x[..., 3],
    "expanded": lambda x: x[:, :1].expand(6, 50, 34),
    "expanded and transposed": lambda x: x[:1, :, None].expand(3, 40, 7, 34).transpose(0, 3),
    "overlapping": lambda x: x.reshape(-1).unfold(0, 9, 2),
    "channels last": lambda x: x.reshape(2, 3, 40, 34).to(memory_format=torch.channels_last),
    "dimensions of size one": lambda x: x[:, None, :, None].transpose(0, 3),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int16, torch.complex64], ids=str)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views(view: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    tensor = view(make_tensor(dtype, (6, 40, 34)))
    check_stats(read(tensor), numbers_of(tensor))


def test_conjugate_and_negative_views() -> None:
    tensor = make_tensor(torch.complex64, (40, 30))
    assert tensor.conj().is_conj()
    assert tensor.conj().imag.is_neg()
    check_stats(read(tensor.conj()), numbers_of(tensor))
    check_stats(read(tensor.conj().imag), -tensor.imag.double().numpy())


def test_quantized_tensors_count_as_what_they_stand_for() -> None:
    numbers = make_tensor(torch.float32, (20, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scales, zeros = torch.linspace(0.05, 0.2, 20), torch.zeros(20, dtype=torch.int64)
        for quantized in (
            torch.quantize_per_tensor(numbers, 0.1, 10, torch.quint8),
            torch.quantize_per_tensor(numbers, 0.1, 0, torch.qint32),
            torch.quantize_per_channel(numbers, scales, zeros, 0, torch.qint8),
        ):
            check_stats(read(quantized), quantized.dequantize().double().numpy())


SPARSE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "coo": lambda x: x.to_sparse(),
    "coo with dense part": lambda x: x.to_sparse(1),
    "csr": lambda x: x.to_sparse_csr(),
    "csc": lambda x: x.to_sparse_csc(),
    "bsr": lambda x: x.to_sparse_bsr((2, 2)),
    "bsc": lambda x: x.to_sparse_bsc((2, 2)),
}


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize("make_sparse", SPARSE.values(), ids=SPARSE)
@pytest.mark.parametrize("sign", [1, -1])
def test_sparse_tensors_count_as_the_dense_ones(
    make_sparse: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype, sign: int
) -> None:
    dense = make_tensor(torch.float64, (20, 30)).abs() * sign
    dense = (dense * 5 * (dense.abs() > 6)).to(dtype)
    check_stats(read(make_sparse(dense)), numbers_of(dense))


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_with_repeated_places_nan_and_nothing_stored() -> None:
    repeated = torch.sparse_coo_tensor([[0, 2, 0], [1, 1, 1]], [3.0, 2.0, 4.0], (3, 2))
    check_stats(read(repeated), repeated.to_dense().double().numpy())
    broken = torch.sparse_coo_tensor([[0, 1]], [NAN, -2.0], (5,))
    check_stats(read(broken), broken.to_dense().double().numpy())
    check_stats(read(torch.sparse_coo_tensor([[1]], [NAN], (2,))), np.array([0.0, NAN]))
    check_stats(read(torch.sparse_coo_tensor(size=(3, 2))), np.zeros(6))
    check_stats(read(torch.sparse_coo_tensor(size=(3, 2), dtype=torch.int64)), np.zeros(6))


# -- every size of number ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [3, 512, 5000])
@pytest.mark.parametrize(
    ("dtype", "size"),
    [
        (torch.float32, 1e30),  # its square is no float32
        (torch.float32, 3e38),  # its sum is none either
        (torch.float32, 1e-18),
        (torch.float32, 1e-22),  # its square keeps one digit
        (torch.float32, 1e-30),
        (torch.float32, 1e-42),
        (torch.float64, 1e200),  # its square is no float64
        (torch.float64, 1e-170),
        (torch.float64, 1e-320),
        (torch.bfloat16, 3e38),
        (torch.bfloat16, 1e-38),
        (torch.float16, 65504.0),
        (torch.float16, 6e-8),
    ],
    ids=str,
)
def test_huge_and_tiny_numbers(dtype: torch.dtype, size: float, count: int) -> None:
    tensor = (torch.linspace(0.3, 1.0, count, dtype=torch.float64) * size).to(dtype)
    check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize(
    ("dtype", "size"), [(torch.complex32, 6e4), (torch.complex64, 1e30), (torch.complex128, 1e200)], ids=str
)
def test_huge_complex_numbers(dtype: torch.dtype, size: float) -> None:
    tensor = torch.full((600,), complex(size, size), dtype=dtype)
    check_stats(read(tensor), numbers_of(tensor))


def test_a_large_tensor_loses_no_precision() -> None:
    tensor = torch.randn(4_000_003, generator=torch.Generator().manual_seed(1)) + 5
    numbers = tensor.double()
    stats = read(tensor)
    assert abs(stats.mean / numbers.mean().item() - 1) < 1e-6
    assert abs(stats.norm / numbers.norm().item() - 1) < 1e-6
    assert (stats.max, stats.min) == (tensor.max().item(), tensor.min().item())


def test_one_large_number_does_not_drown_many_small_ones() -> None:
    tensor = torch.full((1 << 20,), 1e-3)
    tensor[0] = 1e3
    check_stats(read(tensor), numbers_of(tensor))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize(
    "numbers",
    [
        [NAN],
        [NAN, NAN],
        [INF],
        [-INF, 2.0],
        [INF, -INF, 1.0],
        [NAN, INF, -3.0],
        [NAN, 1.0, NAN, -2.0],
        [NAN] * 600 + [1.0],
        [-INF] * 600,
    ],
    ids=lambda numbers: f"{numbers[:4]}x{len(numbers)}",
)
def test_nan_is_counted_and_left_out_and_infinities_are_counted(dtype: torch.dtype, numbers: list[float]) -> None:
    check_stats(read(torch.tensor(numbers, dtype=torch.float64).to(dtype)), np.array(numbers))


def test_nan_in_one_part_of_a_tensor_that_is_reduced_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_CHUNK", 64)
    tensor = make_tensor(torch.float32, (1000,))
    tensor[64:128] = NAN
    tensor[700] = INF
    check_stats(read(tensor), numbers_of(tensor))


# -- what has no statistics --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_an_empty_tensor_says_so(shape: tuple[int, ...]) -> None:
    stats = read(torch.empty(shape))
    assert stats.reason == "empty"
    assert stats.max is stats.min is stats.mean is stats.norm is None


def test_a_meta_tensor_says_so() -> None:
    assert read(torch.empty(3, device="meta")).reason == "meta tensor"


@pytest.mark.parametrize("name", ["bits8", "bits16", "uint4", "int4", "float4_e2m1fn_x2"])
def test_a_dtype_without_arithmetic_says_so(name: str) -> None:
    if not hasattr(torch, name):
        pytest.skip(f"this torch has no {name}")
    stats = read(torch.empty(4, dtype=getattr(torch, name)))
    assert stats.max is None
    assert stats.reason is not None
    assert stats.reason.startswith("not computed: ")


def test_an_expanded_tensor_needs_no_memory_for_what_it_shows() -> None:
    stats = read(torch.tensor([3.0, -4.0])[:, None].expand(2, 10**12))
    assert (stats.max, stats.min, stats.mean) == (3.0, -4.0, -0.5)
    assert stats.norm == pytest.approx(5e6)


# -- any shape, any numbers --------------------------------------------------------------------------------------------


@settings(max_examples=count_examples(150))
@given(hnp.arrays(np.float32, hnp.array_shapes(max_dims=4, max_side=14), elements=st.floats(width=32)), st.randoms())
def test_any_float32(array: np.ndarray[Any, Any], random: Any) -> None:
    order = random.sample(range(array.ndim), array.ndim)
    check_stats(read(torch.tensor(array).permute(order)), array.astype(np.float64))


@settings(max_examples=count_examples(100))
@given(
    hnp.arrays(
        np.float64, hnp.array_shapes(max_dims=3, max_side=30), elements=st.floats(-1e300, 1e300) | st.just(math.nan)
    )
)
def test_any_float64(array: np.ndarray[Any, Any]) -> None:
    check_stats(read(torch.tensor(array)), array)


@settings(max_examples=count_examples(50))
@given(hnp.arrays(np.int64, hnp.array_shapes(max_dims=2, max_side=30)))
def test_any_int64(array: np.ndarray[Any, Any]) -> None:
    stats = read(torch.tensor(array))
    assert (stats.max, stats.min) == (int(array.max()), int(array.min()))
    numbers = array.astype(np.float64)
    assert_close(stats.mean, numbers.mean(), np.abs(numbers).mean())


# -- on a device -------------------------------------------------------------------------------------------------------


def reduce_in_buffer(tensor: torch.Tensor, buffer: DeviceBuffer) -> Stats:
    return buffer.add(tensor, Extent(tensor.dtype, tensor.numel()))


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=str)
def test_the_device_path_gives_the_same_numbers(dtype: torch.dtype) -> None:
    buffer = DeviceBuffer(torch.device("cpu"))
    tensors = [make_tensor(dtype, shape) for shape in SHAPES]
    found = [reduce_in_buffer(tensor, buffer) for tensor in tensors]
    assert found[0].max is None  # nothing has been waited for
    buffer.fetch()
    for tensor, stats in zip(tensors, found, strict=True):
        check_stats(stats, numbers_of(tensor))
        assert type(stats.max) is type(read(tensor).max)


def test_the_device_path_keeps_integers_exact_and_counts_nan() -> None:
    buffer = DeviceBuffer(torch.device("cpu"))
    signed = reduce_in_buffer(torch.tensor([2**53 + 1, -(2**62) - 1]), buffer)
    unsigned = reduce_in_buffer(torch.tensor([2**64 - 1, 2**53 + 1], dtype=torch.uint64), buffer)
    broken = reduce_in_buffer(torch.tensor([NAN, INF, -1.0]), buffer)
    buffer.fetch()
    assert (signed.max, signed.min) == (2**53 + 1, -(2**62) - 1)
    assert (unsigned.max, unsigned.min) == (2**64 - 1, 2**53 + 1)
    check_stats(broken, np.array([NAN, INF, -1.0]))


def test_more_tensors_than_the_buffer_has_rows_and_fetching_twice() -> None:
    buffer = DeviceBuffer(torch.device("cpu"))
    found = [reduce_in_buffer(torch.tensor([float(i)]), buffer) for i in range(statistics._BUFFER_ROWS + 50)]
    buffer.fetch()
    buffer.fetch()
    assert [stats.max for stats in found] == [float(i) for i in range(len(found))]
    later = reduce_in_buffer(torch.tensor([7.0]), buffer)
    buffer.fetch()
    assert later.max == 7.0


def test_a_tensor_that_takes_several_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "_DEVICE_CHUNK", BLOCK)
    buffer = DeviceBuffer(torch.device("cpu"))
    tensors = [make_tensor(dtype, (3, 700)) for dtype in (torch.float32, torch.int64, torch.float64)]
    found = [reduce_in_buffer(tensor, buffer) for tensor in tensors]
    buffer.fetch()
    for tensor, stats in zip(tensors, found, strict=True):
        check_stats(stats, numbers_of(tensor))


def test_a_buffer_that_was_made_in_inference_mode_works_outside_it() -> None:
    with torch.inference_mode():
        buffer = DeviceBuffer(torch.device("cpu"))
        inside = reduce_in_buffer(torch.tensor([1.0]), buffer)
    outside = reduce_in_buffer(torch.tensor([2.0]), buffer)
    buffer.fetch()
    assert (inside.max, outside.max) == (1.0, 2.0)


def test_a_signal_handler_may_fetch_in_the_middle_of_a_reduction(monkeypatch: pytest.MonkeyPatch) -> None:
    reducer = Reducer()
    buffer = reducer._buffers[torch.device("meta")] = DeviceBuffer(torch.device("cpu"))
    before = reduce_in_buffer(torch.tensor([1.0, 2.0]), buffer)
    original = statistics.reduce_into

    def interrupted(tensor: torch.Tensor, row: torch.Tensor) -> None:
        original(tensor, row)
        reducer.fetch()

    monkeypatch.setattr(statistics, "reduce_into", interrupted)
    with reducer._lock:
        during = reduce_in_buffer(torch.tensor([3.0, 5.0]), buffer)
    reducer.fetch()
    assert (before.max, before.mean) == (2.0, 1.5)
    assert (during.max, during.mean) == (5.0, 4.0)


def test_the_streams_that_computed_are_waited_for() -> None:
    class Stream:
        is_done = False

        def synchronize(self) -> None:
            self.is_done = True

    buffer, stream = DeviceBuffer(torch.device("cpu")), Stream()
    reduce_in_buffer(torch.tensor([1.0]), buffer)
    buffer._streams.add(stream)
    buffer.fetch()
    assert stream.is_done


def test_a_device_that_fails_leaves_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = DeviceBuffer(torch.device("cpu"))
    stats = reduce_in_buffer(torch.tensor([1.0]), buffer)

    def fail(used: int) -> torch.Tensor:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    monkeypatch.setattr(buffer, "_rows_on_host", fail)
    with pytest.raises(RuntimeError):
        buffer.fetch()
    assert stats.max is None
    assert stats.reason == "not computed: CUDA error: an illegal memory access was encountered"
    buffer.fetch()  # nothing waits any more


def test_expanded_and_sparse_values_on_the_device_path() -> None:
    buffer = DeviceBuffer(torch.device("cpu"))
    expanded = buffer.add(torch.tensor([3.0, NAN]), Extent(torch.float32, 2, repeats=5))
    sparse = buffer.add(torch.tensor([3.0, 4.0]), Extent(torch.float32, 2, zeros=8))
    nothing = buffer.add(torch.tensor([]), Extent(torch.float32, 0, zeros=4))
    buffer.fetch()
    check_stats(expanded, np.array([3.0, NAN] * 5))
    check_stats(sparse, np.array([3.0, 4.0] + [0.0] * 8))
    check_stats(nothing, np.zeros(4))


def test_the_reductions_leave_the_tensor_and_the_generator_alone() -> None:
    tensor = make_tensor(torch.float32, (600, 3))
    before, version, state = tensor.clone(), tensor._version, torch.get_rng_state()
    Reducer().reduce(tensor)
    assert torch.equal(tensor, before)
    assert tensor._version == version
    assert torch.equal(torch.get_rng_state(), state)


def test_the_parts_of_a_tensor_add_up() -> None:
    parts = [[1.0, -2.0, 3.0, 3e200, 0, 1, 1.0, 2.0, 3.0, 4.0], [5.0, 0.0, 1.0, 4e200, 2, 0, 1.0, 1.0, 1.0, 1.0]]
    merged = merge_rows(parts)
    assert merged[:3] == [5.0, -2.0, 4.0]
    assert merged[3] == pytest.approx(5e200)
    assert merged[4:] == [2, 1, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.parametrize("count", [5_000, 38_416, 300_000, 5_000_000])
def test_equal_elements_which_round_alike_are_summed_to_six_digits_whatever_their_number(count: int) -> None:
    stats, number = read(torch.full((count,), 247.3)), float(torch.tensor(247.3))
    assert stats.mean == pytest.approx(number, rel=1e-6)
    assert stats.norm == pytest.approx(number * math.sqrt(count), rel=1e-6)


@pytest.mark.parametrize(
    "view",
    [
        lambda: torch.ones(1).expand(4, 8),
        lambda: torch.arange(4.0)[:, None].expand(4, 8),
        lambda: torch.arange(32.0).view(4, 8).t(),
        lambda: torch.arange(64.0)[::2],
        lambda: torch.arange(32.0).view(4, 8),
    ],
    ids=["one element", "columns", "transposed", "gaps", "plain"],
)
def test_a_kernel_is_given_memory_that_holds_every_element_in_its_place(view: Callable[[], torch.Tensor]) -> None:
    line = in_one_line(view())
    assert line.is_contiguous() and line.stride() == (1,)
    assert line.tolist() == view().flatten().tolist()
