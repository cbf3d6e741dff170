"""Tensor files are read without torch, without unpickling, and without believing what they say of their sizes."""

from __future__ import annotations

import gc
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.errors import DumpError
from tensorprobe.store import npy_file, torch_file
from tensorprobe.store.tensor_file import NotDenseError, identify_bytes, open_tensor
from tensorprobe.store.tensor_layout import Unreadable
from tests.length import count_examples
from tests.store.torch_archive import name, sequence, tensor_pickle, text, write_archive

FOLDER = Path(__file__).with_name("tensor_file")
EXPECTED: dict[str, dict[str, Any]] = json.loads((FOLDER / "expected.json").read_text())
READ = [file for file, entry in EXPECTED.items() if "values" in entry]
REFUSED = [file for file, entry in EXPECTED.items() if "refused" in entry]
DTYPES = ("f2", "f4", "f8", "c8", "c16", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", ">f4", ">i8", ">c16")
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def reason(path: Path, dtype: str | None = None) -> str:
    with pytest.raises(DumpError) as caught:
        open_tensor(path, dtype)
    return str(caught.value)


def plain_values(array: np.ndarray[Any, Any]) -> list[Any]:
    if array.dtype.kind == "c":
        return np.ascontiguousarray(array).astype(np.complex128).view(np.float64).ravel().tolist()
    if array.dtype.kind in "fV":
        return array.astype(np.float64).ravel().tolist()
    return array.ravel().tolist()


@pytest.mark.parametrize("file", READ)
def test_a_file_of_torch_holds_what_torch_reads_from_it(file: str) -> None:
    expected = EXPECTED[file]
    array = open_tensor(FOLDER / file)
    assert list(array.shape) == expected["shape"]
    # numpy has no complex number of two float16.
    assert array.dtype.name == {"complex32": "complex64"}.get(expected["dtype"], expected["dtype"])
    np.testing.assert_array_equal(plain_values(array), expected["values"])
    assert str(plain_values(array)) == str(expected["values"]).replace("NaN", "nan").replace("Infinity", "inf")


@pytest.mark.parametrize("file", REFUSED)
def test_what_is_no_plain_array_is_refused_in_words(file: str) -> None:
    assert EXPECTED[file]["refused"] in reason(FOLDER / file)


def test_a_sparse_file_is_told_from_a_spoilt_one() -> None:
    with pytest.raises(NotDenseError):
        open_tensor(FOLDER / "sparse-coo.pt")
    with pytest.raises(DumpError) as caught:
        open_tensor(FOLDER / "list.pt")
    assert not isinstance(caught.value, NotDenseError)


@pytest.mark.parametrize("file", ["float32.pt", "transposed.pt"])
def test_a_tensor_is_mapped_and_not_copied(file: str) -> None:
    assert not open_tensor(FOLDER / file).flags.owndata


@in_a_folder
@given(
    array=st.sampled_from(DTYPES).flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_dims=0, min_side=0))),
    is_fortran=st.booleans(),
    version=st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_what_numpy_saves_is_read_back(
    tmp_path: Path, array: np.ndarray[Any, Any], is_fortran: bool, version: tuple[int, int]
) -> None:
    path = tmp_path / "x.npy"
    array = np.asfortranarray(array) if is_fortran and array.ndim else array
    with path.open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    found = open_tensor(path)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("dtype", ["torch.bfloat16", "BFloat16", "torch.float8_e4m3fn", "torch.float8_e5m2"])
def test_the_record_tells_what_numpy_writes_as_nameless_bytes(tmp_path: Path, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    values = np.array([1.5, -2.0, 0.25], getattr(ml_dtypes, dtype.rpartition(".")[2].lower()))
    np.save(tmp_path / "x.npy", values)
    assert open_tensor(tmp_path / "x.npy", dtype).astype(float).tolist() == [1.5, -2.0, 0.25]
    assert "not compared" in reason(tmp_path / "x.npy")
    assert "not compared" in reason(tmp_path / "x.npy", "torch.float32")


def test_files_that_cannot_be_read_say_why_in_a_few_words(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    assert reason(path) == "x.pt is missing"
    path.write_bytes(b"")
    assert reason(path) == "x.pt is empty"
    path.write_bytes(b"what is this")
    assert reason(path) == "x.pt is neither a .npy nor a .pt file"
    path.write_bytes(pickle.dumps({"a": 1}))
    assert reason(path) == "x.pt holds a pickle, not a tensor"
    path.unlink()
    path.mkdir()
    assert reason(path) == "x.pt is not a regular file"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no pipes with names")
def test_a_pipe_in_the_place_of_a_file_does_not_wait_for_ever(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.pt")
    assert reason(tmp_path / "x.pt") == "x.pt is not a regular file"


@pytest.mark.parametrize("file", ["float32.pt", "x.npy"])
def test_wherever_a_file_is_cut_it_is_an_error(tmp_path: Path, file: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(6.0))
    content = (tmp_path / file if file == "x.npy" else FOLDER / file).read_bytes()
    for length in range(8, len(content), 7):
        (tmp_path / file).write_bytes(content[:length])
        assert reason(tmp_path / file) == f"{file} is cut off"


def npy(path: Path, header: str, elements: bytes = b"") -> Path:
    path.write_bytes(b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode("latin-1") + elements)
    return path


HEADERS = {
    "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}": "holds a pickle",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}": "fields",
    "{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}": "not compared",
    "{'descr': '<U9', 'fortran_order': False, 'shape': (1,)}": "not compared",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (2500000000,)}": "cut off",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 0)}": "makes no sense",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999,)}": "makes no sense",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,)}": "makes no sense",
    "{'descr': '<f4', 'fortran_order': False, 'shape': " + str((1,) * 99) + "}": "makes no sense",
    "{'descr': __import__('os').getcwd(), 'fortran_order': False, 'shape': (1,)}": "makes no sense",
    "(" * 9000: "makes no sense",
    "": "makes no sense",
}


@pytest.mark.parametrize(("header", "words"), HEADERS.items(), ids=lambda text: text[:60])
def test_a_strange_header_of_a_npy_file_is_an_error(tmp_path: Path, header: str, words: str) -> None:
    assert words in reason(npy(tmp_path / "x.npy", header, b"1234"))


def test_a_header_of_a_npy_file_is_not_read_when_it_is_huge(tmp_path: Path) -> None:
    header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}" + " " * npy_file.MAX_HEADER_BYTES
    assert reason(npy(tmp_path / "x.npy", header, b"1234")) == "x.npy has a header that is too large"


def test_a_version_of_the_npy_format_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x09\x00" + bytes(100))
    assert "version 9" in reason(tmp_path / "x.npy")


def test_an_archive_made_by_hand_is_read_as_one_of_torch(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.pt", tensor_pickle((2, 2), (2, 1), 1), np.arange(5, dtype="<f4").tobytes())
    assert open_tensor(path).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_two_entries_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write_archive(tmp_path / "x.pt", tensor_pickle((2,), (1,)), bytes(8))
    with pytest.warns(UserWarning, match="Duplicate name"), zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/0", bytes(range(8)))
    assert reason(path) == "x.pt is damaged: two of its entries have one name"


LAYOUTS = {
    "larger than its storage": (((3,), (1,), 0), "too short for its shape [3]"),
    "begins too late": (((2,), (1,), 1), "too short"),
    "steps too far": (((2,), (2,), 0), "too short"),
    "10 GB": (((2500000000,), (1,), 0), "too short"),
    "beyond any address": (((1 << 70,), (1 << 70,), 0), "makes no sense"),
    "strides beyond any address": (((1,), (1 << 70,), 0), "makes no sense"),
    "begins beyond any address": (((1,), (1,), 1 << 70), "makes no sense"),
    "steps back": (((2,), (-1,), 1), "makes no sense"),
    "begins before": (((1,), (1,), -1), "makes no sense"),
    "negative size": (((-2,), (1,), 0), "makes no sense"),
    "strides of another shape": (((2,), (1, 1), 0), "makes no sense"),
    "33 dimensions": (((1,) * 33, (1,) * 33, 0), "33 dimensions"),
    "two numbers for a terabyte": (((1 << 40,), (0,), 0), "repeats 8 bytes"),
}


@pytest.mark.parametrize(("layout", "words"), LAYOUTS.values(), ids=LAYOUTS)
def test_no_size_is_believed(tmp_path: Path, layout: tuple[Any, Any, int], words: str) -> None:
    path = write_archive(tmp_path / "x.pt", tensor_pickle(*layout), bytes(8))
    assert words in reason(path)


def test_a_file_that_is_too_short_for_any_directory_is_cut_off(tmp_path: Path) -> None:
    (tmp_path / "x.pt").write_bytes(b"PK\x03\x04" + b"PK\x05\x06" + bytes(5))
    assert reason(tmp_path / "x.pt") == "x.pt is cut off"


def test_comments_of_entries_are_stepped_over(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        for entry, content in (
            ("data.pkl", tensor_pickle((2,), (1,))),
            ("data/0", np.array([1.0, 2.0], "<f4").tobytes()),
        ):
            info = zipfile.ZipInfo(f"archive/{entry}")
            info.comment = b"why not"
            archive.writestr(info, content)
    assert open_tensor(tmp_path / "x.pt").tolist() == [1.0, 2.0]


def test_numbers_of_more_than_32_bits_stand_in_a_field_that_may_follow_others() -> None:
    time_field = struct.pack("<HHB", 0x5455, 1, 0)
    wide = struct.pack("<HHQQ", 1, 16, 1 << 33, 1 << 34)
    too_large = 0xFFFFFFFF
    assert torch_file._widen(b"", 5, 6, 7) == (5, 6, 7)
    assert torch_file._widen(time_field + wide, too_large, 6, too_large) == (1 << 33, 6, 1 << 34)
    for extra in (b"", time_field, wide[:12], struct.pack("<HHQ", 1, 8, 1 << 33)):
        with pytest.raises(Unreadable, match="its directory makes no sense"):
            torch_file._widen(extra, too_large, 6, too_large)


def count_open_files() -> int:
    gc.collect()
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="this system does not list open files")
def test_no_file_stays_open_behind_a_tensor(tmp_path: Path) -> None:
    (tmp_path / "x.npy").write_bytes(b"no array")
    before = count_open_files()
    held = [open_tensor(FOLDER / "float32.pt") for _ in range(3)]
    for _ in range(3):
        reason(tmp_path / "x.npy")
    # A mapping keeps one, until its array is gone.
    assert count_open_files() <= before + len(held)


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    trace = tmp_path / "executed"
    call = name("os", "mkdir") + sequence(text(str(trace))) + b"R"
    for pickled in (b"\x80\x02" + call + b".", tensor_pickle((2,), (1,)).replace(b")R", b")R0" + call)):
        pickle.loads(b"\x80\x02" + call + b".")
        assert trace.is_dir()  # the attack works where it is unpickled
        trace.rmdir()
        try:
            open_tensor(write_archive(tmp_path / "x.pt", pickled, bytes(8)))
        except DumpError as error:
            assert "pickle" in str(error)
        assert not trace.exists()


def test_a_zip_bomb_is_not_unpacked(tmp_path: Path) -> None:
    pickled, zeros = tensor_pickle((1 << 22,), (1,)), bytes(1 << 24)
    path = write_archive(tmp_path / "x.pt", pickled, zeros, compression=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 17
    assert "compressed" in reason(path)


def test_an_archive_of_very_many_entries_is_not_listed(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        for number in range(torch_file.MAX_ENTRIES + 1):
            archive.writestr(str(number), b"")
    assert reason(tmp_path / "x.pt") == "x.pt holds more than a tensor"


def test_a_huge_pickle_is_not_walked(tmp_path: Path) -> None:
    pickled = b"\x80\x02" + b"N0" * (torch_file.MAX_PICKLE_BYTES // 2) + tensor_pickle((2,), (1,))[2:]
    assert reason(write_archive(tmp_path / "x.pt", pickled, bytes(8))) == "x.pt holds more than a tensor"


def test_an_archive_without_a_tensor_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive:
        archive.writestr("readme", b"hello")
    assert reason(tmp_path / "x.pt") == "x.pt is a zip archive without a tensor"
    pickled = tensor_pickle((2,), (1,), key="../../etc/passwd")
    assert "lacks the elements" in reason(write_archive(tmp_path / "x.pt", pickled, bytes(8)))


def test_bytes_in_the_other_order_are_turned(tmp_path: Path) -> None:
    content = (FOLDER / "float32.pt").read_bytes()
    with zipfile.ZipFile(tmp_path / "x.pt", "w") as archive, zipfile.ZipFile(FOLDER / "float32.pt") as original:
        for entry in original.namelist():
            data = original.read(entry)
            if entry.endswith("byteorder"):
                data = b"big"
            elif entry.endswith("/data/0"):
                data = np.frombuffer(data, "<f4").byteswap().tobytes()
            archive.writestr(entry, data)
    assert content != (tmp_path / "x.pt").read_bytes()
    np.testing.assert_array_equal(open_tensor(tmp_path / "x.pt"), open_tensor(FOLDER / "float32.pt"))


FUZZED = {
    file: (FOLDER / file).read_bytes() for file in ("float32.pt", "transposed.pt", "float8_e5m2.pt", "sparse-coo.pt")
}
FUZZED["x.npy"] = b"\x93NUMPY\x01\x00\x46\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }".ljust(
    80
) + bytes(24)
changes = st.lists(
    st.tuples(st.integers(0, 2000), st.one_of(st.integers(0, 255), st.sampled_from([0xFF, 0x7F, 0x80, 0]))), max_size=12
)


@settings(in_a_folder, max_examples=count_examples(400))
@given(
    file=st.sampled_from(sorted(FUZZED)),
    changed=changes,
    cut=st.none() | st.integers(0, 2000),
    doubled=st.none() | st.tuples(st.integers(0, 2000), st.integers(1, 60)),
)
def test_whatever_is_changed_in_a_file_it_is_read_or_refused(
    tmp_path: Path, file: str, changed: list[tuple[int, int]], cut: int | None, doubled: tuple[int, int] | None
) -> None:
    content = bytearray(FUZZED[file])
    for position, value in changed:
        content[position % len(content)] = value
    if doubled is not None:
        start, length = doubled
        content[start:start] = content[start : start + length]
    if cut is not None:
        del content[cut:]
    path = tmp_path / "x"
    path.write_bytes(content)
    try:
        array = open_tensor(path)
    except DumpError as error:
        assert str(error).startswith("x ")
        assert len(str(error)) < 120
    else:
        # Every element lies in the file: reading one outside would end the process.
        assert array.size <= 1 << 30
        if array.size < 1 << 16:
            array.astype(np.complex128).sum()


def test_files_of_the_same_bytes_are_known_by_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, other = (tmp_path / f"{name}.npy" for name in ("first", "second", "other"))
    for path, array in ((first, np.ones(3)), (second, np.ones(3)), (other, np.zeros(3))):
        np.save(path, array)
    assert identify_bytes(first) == identify_bytes(second) != identify_bytes(other)
    monkeypatch.setattr("tensorprobe.store.tensor_file._SMALL_BYTES", first.stat().st_size - 1)
    assert identify_bytes(first) is None


def test_what_cannot_be_read_is_known_by_nothing(tmp_path: Path) -> None:
    assert identify_bytes(tmp_path) is None
    assert identify_bytes(tmp_path / "missing.npy") is None
    assert identify_bytes(tmp_path / "a\0b") is None
