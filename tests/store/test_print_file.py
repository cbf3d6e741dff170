"""The reader of MindSpore's print files: what it reads, and that no file makes it do anything else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from tensorprobe.store import print_file
from tensorprobe.store.print_file import PrintedTensor, make_array, read_values
from tensorprobe.store.tensor_layout import Unreadable
from tests.length import count_examples
from tests.store.print_bytes import array_value, field, tensor_value, text_value, varint

DTYPES = ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "float32", "float64", "complex64", "complex128"]
ARRAYS = st.sampled_from(DTYPES).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))
)
EXAMPLE = bytes.fromhex("0a130a11") + b"_TS_SAVE_NAME:add" + bytes.fromhex("0a1f121d08041207") + b"Float32\x1a\x10"
EXAMPLE += np.array([2, 3, 4, 5], np.float32).tobytes()


def test_a_file_as_mindspore_writes_it() -> None:
    assert text_value("_TS_SAVE_NAME:add") + array_value(np.array([2, 3, 4, 5], np.float32)) == EXAMPLE
    text, tensor = read_values(EXAMPLE)
    assert text == "_TS_SAVE_NAME:add" and isinstance(tensor, PrintedTensor)
    assert make_array(EXAMPLE, tensor).tolist() == [2, 3, 4, 5]


@settings(max_examples=count_examples(100))
@given(values=st.lists(st.one_of(st.text(max_size=20), ARRAYS), max_size=5))
def test_what_was_written_is_read(values: list[object]) -> None:
    content = b"".join(text_value(v) if isinstance(v, str) else array_value(v) for v in values)  # type: ignore[arg-type]
    for value, got in zip(values, read_values(content), strict=True):
        if isinstance(value, np.ndarray):
            assert isinstance(got, PrintedTensor)
            array = make_array(content, got)
            assert (array.dtype, array.shape, array.tobytes()) == (value.dtype, value.shape, value.tobytes())
        else:
            assert got == value


@settings(max_examples=count_examples(300))
@given(content=st.binary(max_size=80))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    try:
        for value in read_values(content):
            if isinstance(value, PrintedTensor):
                make_array(content, value)
    except Unreadable:
        return


@settings(max_examples=count_examples(200))
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(data: st.DataObject) -> None:
    content = bytearray(EXAMPLE * 2)
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    test_any_bytes_are_read_or_refused.hypothesis.inner_test(bytes(content))  # type: ignore[attr-defined]


@pytest.mark.parametrize("length", range(1, len(EXAMPLE)))
def test_a_file_that_was_cut_gives_what_is_whole_and_says_where_it_ends(length: int) -> None:
    content, got = EXAMPLE + EXAMPLE[:length], []
    if length == 21:  # between two values
        return
    with pytest.raises(Unreadable, match=r"is cut off.* byte \d+"):
        for value in read_values(content):
            got.append(value)
    assert len(got) == (3 if length > 21 else 2)


def test_packed_dimensions_and_unknown_fields_are_read() -> None:
    content = tensor_value("Int8", (2, 3), bytes(range(6)), is_packed=True)
    content += varint(9 << 3) + varint(300) + varint(9 << 3 | 1) + bytes(8) + varint(9 << 3 | 5) + bytes(4)
    (tensor,) = read_values(content + field(7, b"later versions"))
    assert isinstance(tensor, PrintedTensor)
    assert make_array(content, tensor).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("tensor_type", "content", "numbers"),
    [
        ("BFloat16", bytes.fromhex("c03f00c0"), [1.5, -2.0]),
        ("Float8E4M3FN", b"\x3c\xc0", [1.5, -2.0]),
        ("Float8E5M2", b"\x3e\xc0", [1.5, -2.0]),
        ("Bool", b"\x00\x02", [False, True]),
        ("Complex64", np.array([1j, 2], np.complex64).tobytes(), [1j, 2]),
    ],
)
def test_dtypes_of_mindspore(tensor_type: str, content: bytes, numbers: list[complex]) -> None:
    file = tensor_value(tensor_type, (2,), content)
    (tensor,) = read_values(file)
    assert isinstance(tensor, PrintedTensor) and make_array(file, tensor).tolist() == numbers


def test_a_single_number_has_no_dimension_however_it_was_written() -> None:
    number = np.float32(2.5).tobytes()
    for dims in ((), (0,)):
        file = tensor_value("Float32", dims, number)
        (tensor,) = read_values(file)
        assert isinstance(tensor, PrintedTensor)
        array = make_array(file, tensor)
        assert array.shape == () and array == 2.5


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (tensor_value("Float32", (3,), bytes(8)), "8 bytes whose shape \\[3\\] needs another number"),
        (tensor_value("Float32", (1 << 40, 1 << 40), bytes(8)), "needs another number"),
        (tensor_value("Float32", (0, 1 << 62, 1 << 62), b""), "makes no sense"),
        (tensor_value("String", (1,), b"x"), "of the type 'String', which is not converted"),
        (tensor_value("Float32", ((1 << 64) - 1,), b""), "impossible dimensions"),
        (tensor_value("Float32", (1,) * 33, bytes(4)), "impossible dimensions"),
        (tensor_value("Float32", (1,) * 33, bytes(4), is_packed=True), "impossible dimensions"),
        (field(1, field(2, varint(3 << 3 | 2) + varint(1 << 60))), "is cut off"),
        (b"\x0b", "makes no sense at byte 0"),
        (b"\x80" * 11, "makes no sense at byte 0"),
        (b"\x02\x00", "makes no sense at byte 0"),
    ],
)
def test_what_a_file_claims_is_not_believed(value: bytes, words: str) -> None:
    with pytest.raises(Unreadable, match=words):
        for one in read_values(value):
            assert isinstance(one, PrintedTensor)
            make_array(value, one)


def test_of_millions_of_dimensions_only_the_first_ones_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    read_varint = print_file._read_varint

    def count(content: print_file.Content, position: int, end: int) -> tuple[int, int]:
        reads.append(position)
        return read_varint(content, position, end)

    monkeypatch.setattr(print_file, "_read_varint", count)
    file = field(1, field(2, field(1, b"\x01" * 5_000_000)))
    with pytest.raises(Unreadable, match="impossible dimensions"):
        list(read_values(file))
    assert len(reads) < 50
