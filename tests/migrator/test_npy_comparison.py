"""Two folders of .npy files: what numpy.allclose says, measured as `compare` measures; one bad file is one row."""

from __future__ import annotations

import math
import os
import pickle
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from tensorprobe.compare.measure import executor
from tensorprobe.errors import UsageError
from tensorprobe.migrator.npy_comparison import NpyDirOptions, compare_folders, iter_passing_by_atol
from tensorprobe.model.npy_row import NpyRow
from tests.length import count_examples

Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return tmp_path_factory.mktemp("reference"), tmp_path_factory.mktemp("candidate")


@pytest.fixture(name="compare")
def make_compare(folders: tuple[Path, Path]) -> Any:
    """A function from two arrays to their row."""

    def compare(reference: Any, candidate: Any, **options: Any) -> NpyRow:
        for folder, array in zip(folders, (reference, candidate), strict=True):
            np.save(folder / "0_x.npy", array)
        return compare_folders(*folders, [("0_x.npy", "0_x.npy")], NpyDirOptions(**options))[0]

    return compare


float_arrays = npst.arrays(
    np.float64,
    st.shared(npst.array_shapes(max_dims=2, max_side=4, min_dims=0), key="shape"),
    elements=st.floats(-100, 100, allow_subnormal=False) | st.sampled_from([math.nan, math.inf, -math.inf, 0.0]),
)


@settings(max_examples=count_examples(150))
@given(float_arrays, float_arrays, st.booleans(), st.sampled_from([0.0, 0.01, 1.0]), st.booleans())
def test_close_is_what_numpy_takes_for_close(
    folders: tuple[Path, Path], reference: Array, noise: Array, is_near: bool, tolerance: float, equal_nan: bool
) -> None:
    with np.errstate(all="ignore"):
        candidate = reference * (1 + tolerance * 0.7) if is_near else noise
        expected = np.isclose(reference, candidate, rtol=tolerance, atol=tolerance, equal_nan=equal_nan)
    for folder, array in zip(folders, (reference, candidate), strict=True):
        np.save(folder / "0_x.npy", array)
    options = NpyDirOptions(tolerance, tolerance, equal_nan)
    row = compare_folders(*folders, [("0_x.npy", "0_x.npy")], options)[0]
    assert row.allclose == expected.all()
    assert row.allclose_share == pytest.approx(expected.mean())


def test_the_error_is_held_against_the_candidate_as_numpy_does(compare: Any) -> None:
    assert compare([10.0], [11.0], rtol=0.095, atol=0).allclose
    assert not compare([11.0], [10.0], rtol=0.095, atol=0).allclose


def test_two_arrays_of_zeros_are_the_same_and_zeros_are_like_nothing_else(compare: Any) -> None:
    zeros = compare(np.zeros((2, 3)), np.zeros((2, 3)))
    assert (zeros.status, zeros.cosine, zeros.mean_abs_error, zeros.max_abs_error) == ("close", 1.0, 0.0, 0.0)
    assert compare(np.zeros(3), np.ones(3)).cosine == 0.0


def test_the_mean_is_over_all_elements(compare: Any) -> None:
    row = compare(np.zeros(4, np.float32), np.array([0, 0, 0, 2], np.float32))
    assert (row.mean_abs_error, row.max_abs_error, row.allclose_share) == (0.5, 2.0, 0.75)


@pytest.mark.parametrize("dtype", ["f2", "f4"])
def test_large_numbers_have_a_cosine(compare: Any, dtype: str) -> None:
    values = np.full(1000, 3e38 if dtype == "f4" else 6e4, dtype)
    assert compare(values, values / 2).cosine == pytest.approx(1.0)


@pytest.mark.parametrize("dtype", ["i8", "u8", "i4", "u1"])
def test_integers_are_compared_exactly(compare: Any, dtype: str) -> None:
    first = np.array([np.iinfo(dtype).max - 1, 7], dtype)
    second = np.array([np.iinfo(dtype).max, 7], dtype)
    row = compare(first, second)
    assert (row.status, row.allclose_share, row.max_abs_error) == ("different", 0.5, 1.0)
    assert compare(first, second, atol=1).status == "close"
    assert compare(second, second).status == "close"


def test_truth_values_are_compared_exactly(compare: Any) -> None:
    assert compare(np.array([True, False]), np.array([True, True])).allclose_share == 0.5


def test_both_parts_of_complex_numbers_count(compare: Any) -> None:
    row = compare(np.array([1 + 1j, 2]), np.array([1 - 1j, 2]))
    assert (row.status, row.max_abs_error) == ("different", 2.0)


def test_bfloat16_is_read_though_numpy_writes_no_name_for_it(compare: Any) -> None:
    values = np.array([1.0, 2.0, -3.0], ml_dtypes.bfloat16)
    assert compare(values, values).status == "close"
    row = compare(values, np.array([1.0, 2.0, -2.0], np.float32))
    assert (row.status, row.max_abs_error) == ("different", 1.0)


def test_a_float8_is_read_where_the_name_says_which(folders: tuple[Path, Path]) -> None:
    name = "x_float8_e5m2_0.npy"
    for folder in folders:
        np.save(folder / name, np.array([1.0, 2.0], ml_dtypes.float8_e5m2))
    assert compare_folders(*folders, [(name, name)], NpyDirOptions())


def test_empty_arrays_and_single_numbers_are_compared(compare: Any) -> None:
    empty = compare(np.zeros((0, 3)), np.zeros((0, 3)))
    assert (empty.status, empty.allclose_share, empty.cosine) == ("close", 1.0, 1.0)
    assert compare(np.float32(2), np.float32(3)).max_abs_error == 1.0


def test_nan_of_both_sides_is_close_only_if_asked_for(compare: Any) -> None:
    values = np.array([1.0, math.nan, 3.0, 4.0])
    row = compare(values, values)
    assert (row.status, row.allclose_share, row.max_abs_error) == ("different", 0.75, math.inf)
    assert math.isnan(row.cosine)
    row = compare(values, values, equal_nan=True)
    assert (row.status, row.allclose_share, row.max_abs_error, row.cosine) == ("close", 1.0, 0.0, 1.0)


def test_nan_of_one_side_is_never_close(compare: Any) -> None:
    row = compare([1.0, math.nan], [1.0, 2.0], equal_nan=True)
    assert (row.status, row.allclose_share, row.max_abs_error) == ("different", 0.5, math.inf)
    assert math.isnan(row.cosine)


def test_tiny_values_that_have_nothing_in_common_are_different_although_they_are_below_atol(
    compare: Any, folders: tuple[Path, Path]
) -> None:
    generator = np.random.default_rng(0)
    first, second = 1e-8 * generator.standard_normal((2, 100))
    row = compare(first, second)
    assert (row.allclose, row.status, row.passes_by_atol) == (True, "different", True)
    assert compare(first, first * (1 + 1e-3)).status == "close"
    assert compare(first * 1e8, first * 1e8 + 0.5, atol=1).status == "close", "atol is below the values"
    compare(first, second)
    found = compare_folders(*folders, [("0_x.npy", "0_x.npy")], NpyDirOptions())
    assert len(list(iter_passing_by_atol(found))) == 1
    assert not found


def write_bad(path: Path, kind: str) -> None:
    np.save(path, np.arange(6.0))
    if kind == "cut":
        path.write_bytes(path.read_bytes()[:-3])
    elif kind == "text":
        path.write_text("no array")
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "objects":
        np.save(path, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    elif kind == "pickle":
        path.write_bytes(pickle.dumps([1, 2]))
    elif kind == "gone":
        path.unlink()
    elif kind == "folder":
        path.unlink()
        path.mkdir()
    elif kind == "link out":
        path.unlink()
        path.symlink_to("/etc/hostname")
    elif kind == "ring":
        path.unlink()
        path.symlink_to(path)


BAD = {
    "cut": "is cut off",
    "text": "is neither a .npy nor a .pt file",
    "empty": "is empty",
    "objects": "holds a pickle, not a tensor",
    "pickle": "holds a pickle, not a tensor",
    "gone": "is missing",
    "folder": "is not a regular file",
    "link out": "leads out of the folder",
    "ring": "",
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("side", [0, 1])
def test_a_file_that_cannot_be_read_has_its_own_words_and_the_others_are_compared(
    tmp_path: Path, kind: str, side: int
) -> None:
    names = ["0_a.npy", "1_bad.npy", "2_c.npy"]
    folders = tmp_path / "reference", tmp_path / "candidate"
    for folder in folders:
        folder.mkdir()
        for name in names:
            np.save(folder / name, np.arange(6.0))
    write_bad(folders[side] / "1_bad.npy", kind)
    found = compare_folders(*folders, [(name, name) for name in names], NpyDirOptions())
    assert [row.status for row in found] == ["close", "not comparable", "close"]
    problems = found[1].reference_problem, found[1].candidate_problem
    assert problems[1 - side] is None
    assert BAD[kind] in (problems[side] or "") and problems[side]
    assert found[1].is_unreadable
    assert not found


def test_a_name_that_leads_out_of_the_folder_is_not_opened(tmp_path: Path) -> None:
    np.save(tmp_path / "secret.npy", np.arange(3))
    (tmp_path / "in").mkdir()
    for name in ("../secret.npy", str(tmp_path / "secret.npy")):
        row = compare_folders(tmp_path / "in", tmp_path, [(name, "secret.npy")], NpyDirOptions())[0]
        assert row.reference_problem == "leads out of the folder"


def test_other_shapes_are_not_comparable_and_known(compare: Any) -> None:
    row = compare(np.zeros((2, 3)), np.zeros((3, 2)))
    assert (row.status, row.problem, row.is_unreadable) == ("not comparable", "shape", False)
    assert (row.reference_shape, row.candidate_shape) == ((2, 3), (3, 2))


def test_a_file_without_a_partner_is_a_row(folders: tuple[Path, Path], compare: Any) -> None:
    compare([1.0], [1.0])
    found = compare_folders(*folders, [("0_x.npy", None), (None, "0_x.npy")], NpyDirOptions())
    assert [row.status for row in found] == ["not comparable"] * 2
    assert [row.is_unreadable for row in found] == [False] * 2


def test_the_work_goes_to_several_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(executor, "_SECONDS_PER_PROCESS", 1e-9)
    asked = []
    measure = executor.measure_in_processes
    monkeypatch.setattr(
        executor, "measure_in_processes", lambda tasks, count: asked.append(count) or measure(tasks, count)
    )
    for number in range(4):
        np.save(tmp_path / f"{number}.npy", np.full(3, number))
    steps: list[int] = []
    names = [(f"{number}.npy", "0.npy") for number in range(4)]
    found = compare_folders(tmp_path, tmp_path, names, NpyDirOptions(processes=2), lambda: steps.append(1))
    assert asked == [2]
    assert [row.max_abs_error for row in found] == [0, 1, 2, 3]
    assert len(steps) == 4


def test_the_rows_are_a_sequence_with_a_truth_value(compare: Any, folders: tuple[Path, Path]) -> None:
    compare([1.0], [2.0])
    found = compare_folders(*folders, [("0_x.npy", "0_x.npy")], NpyDirOptions())
    assert (bool(found), len(found), list(found), found[:1]) == (False, 1, [found[0]], (found[0],))
    assert repr(found) == "<NpyDirComparison of 1 pairs: 0 close, 1 different, 0 not comparable>"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rtol": -1}, "rtol is -1. Give a number that is not negative"),
        ({"atol": "1e-4"}, "atol is '1e-4'"),
        ({"atol": math.nan}, "atol is nan"),
        ({"equal_nan": 1}, "equal_nan is 1. Give True or False"),
        ({"processes": 0}, "num_processes is 0. Give 1 or more"),
        ({"processes": 1.5}, "num_processes is 1.5"),
    ],
)
def test_wrong_options_say_what_to_give(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        NpyDirOptions(**options)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_a_row(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros(1))
    (tmp_path / "0.npy").chmod(0)
    row = compare_folders(tmp_path, tmp_path, [("0.npy", "0.npy")], NpyDirOptions())[0]
    assert row.reference_problem == "cannot be read (Permission denied)"
