"""Files of weights from anyone: read as they are, or refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.errors import DumpError
from tensorprobe.store import weight_file
from tensorprobe.store.weight_file import read_weight_file
from tests.length import count_examples


def write(path: Path, header: object, data: bytes = b"", size: int | None = None) -> Path:
    text = json.dumps(header).encode()
    path.write_bytes((len(text) if size is None else size).to_bytes(8, "little") + text + data)
    return path


def test_names_shapes_and_numbers_of_safetensors_are_read(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    (stored,) = read_weight_file(write(tmp_path / "a.safetensors", header, array.tobytes()))
    assert (stored.weight.name, stored.weight.shape, stored.weight.dtype) == ("a", (2, 3), "float32")
    np.testing.assert_array_equal(stored.read(), array)


def test_bfloat16_of_safetensors_is_read(tmp_path: Path) -> None:
    header = {"a": {"dtype": "BF16", "shape": [1], "data_offsets": [0, 2]}}
    (stored,) = read_weight_file(write(tmp_path / "a.safetensors", header, b"\x80\x3f"))
    assert stored.read().astype(np.float32).tolist() == [1.0]


@pytest.mark.parametrize(
    ("entry", "data"),
    [
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, b""),
        ({"dtype": "F32", "shape": [2**40], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": [-80, 8]}, b"x" * 8),
        ({"dtype": "WHAT", "shape": [2], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [float("inf")], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [float("nan")], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2.0], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": ["2"], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [10**4000], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2**62] * 100_000, "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": 2, "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": {"2": 2}, "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, float("inf")]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 10**4000]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": [8, 0]}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": "08"}, b"x" * 8),
        ({"dtype": "F32", "shape": [2], "data_offsets": [0, 8, 8]}, b"x" * 8),
        ({"dtype": ["F32"], "shape": [2], "data_offsets": [0, 8]}, b"x" * 8),
        ({"dtype": "F32"}, b""),
        ([], b""),
        (3, b""),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, entry: object, data: bytes) -> None:
    path = write(tmp_path / "a.safetensors", {"a": entry}, data)
    with pytest.raises(DumpError, match=r"a.safetensors"):
        for stored in read_weight_file(path):
            stored.read()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b"[" * 3_000 + b"]" * 3_000, "makes no sense"),
        (b"[" * 1_000_000, "makes no sense"),
        (b'{"a": ' + b"9" * 5_000 + b"}", "makes no sense"),
        (b'{"\xff": 1}', "makes no sense"),
        (b'{"a": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}, "a": {}}', "makes no sense"),
        (b'{"\\ud800": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}', r"name '\\ud800', which is no text"),
    ],
)
def test_a_header_that_is_no_list_of_weights_is_refused(tmp_path: Path, text: bytes, words: str) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(DumpError, match=words):
        read_weight_file(path)


def test_thousands_of_dimensions_are_refused_before_anything_is_computed_with_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_file, "contiguous_strides", lambda _: pytest.fail("strides were computed"))
    header = {"a": {"dtype": "F32", "shape": [2**62] * 100_000, "data_offsets": [0, 8]}}
    with pytest.raises(DumpError, match="has 100,000 dimensions"):
        read_weight_file(write(tmp_path / "a.safetensors", header, b"x" * 8))


def test_a_header_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="is cut off"):
        read_weight_file(write(tmp_path / "a.safetensors", {}, size=2**60))


def test_what_is_no_file_of_weights_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pt").write_bytes(b"\x80\x02nonsense")
    (tmp_path / "empty.pt").write_bytes(b"")
    with pytest.raises(DumpError, match=r"is neither a file of torch\.save nor of safetensors"):
        read_weight_file(tmp_path / "a.pt")
    with pytest.raises(DumpError):
        read_weight_file(tmp_path / "empty.pt")
    with pytest.raises(DumpError, match="is missing"):
        read_weight_file(tmp_path / "nowhere.pt")
    with pytest.raises(DumpError, match="is not a regular file"):
        read_weight_file(tmp_path)


@settings(
    max_examples=count_examples(60), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(place=st.integers(0, 200), byte=st.integers(0, 255), end=st.integers(0, 200))
def test_a_damaged_file_is_read_or_refused_and_nothing_else(tmp_path: Path, place: int, byte: int, end: int) -> None:
    header = {"a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}
    content = bytearray(write(tmp_path / "a.safetensors", header, b"x" * 24).read_bytes())
    content[place % len(content)] = byte
    (tmp_path / "a.safetensors").write_bytes(content[: len(content) - end % 40])
    try:
        for stored in read_weight_file(tmp_path / "a.safetensors"):
            stored.read()
    except DumpError:
        return


odd = st.one_of(
    st.sampled_from([None, True, -1, 0, 2, 2**63, 10**300, 1.5, float("inf"), "F32", "2", [], {}, [0, 24], [2, 3]]),
    st.lists(st.integers(-1, 2**64), max_size=40),
)


@settings(
    max_examples=count_examples(100),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.dictionaries(st.sampled_from(["dtype", "shape", "data_offsets", "x"]), odd), st.text(max_size=3))
def test_any_header_is_read_or_refused_and_nothing_else(tmp_path: Path, changes: dict[str, object], name: str) -> None:
    entry = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}
    try:
        for stored in read_weight_file(write(tmp_path / "a.safetensors", {name: entry}, b"x" * 24)):
            assert stored.read().nbytes <= 24
    except DumpError as error:
        assert len(str(error)) < 1_000
