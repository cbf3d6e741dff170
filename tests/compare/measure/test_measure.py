"""A pair of slots is measured by the best that both sides have; what fails is said and not raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tensorprobe.compare.measure.measure import measure_slots
from tensorprobe.compare.measure.measurement import Measurement
from tests.compare.tensor_slot import make_slot

FILES = Path(__file__).parents[2] / "store" / "tensor_file"
STATISTICS = {"max": 3.0, "min": 1.0, "mean": 2.0, "norm": 14**0.5}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "reference.npy", tmp_path / "candidate.npy"
    np.save(paths[0], np.float32([1, 2, 3]))
    np.save(paths[1], np.float32([1, 2, 4]))
    return paths


def measure(first: dict[str, Any], second: dict[str, Any], *paths: Path | None) -> Measurement:
    reference, candidate = (make_slot(**{"shape": (3,), **fields}) for fields in (first, second))
    return measure_slots(reference, candidate, *(paths or (None, None)), 1e-4, 1e-4)  # type: ignore[misc]


def test_two_files_are_compared_by_their_elements(files: tuple[Path, Path]) -> None:
    found = measure(STATISTICS, {**STATISTICS, "checksum": "0" * 8}, *files)
    assert (found.basis, found.max_abs_error, found.worst_index) == ("tensor", 1.0, (2,))


def test_a_file_against_statistics_is_compared_by_statistics(files: tuple[Path, Path]) -> None:
    for found in (measure({}, STATISTICS, files[0], None), measure(STATISTICS, {}, None, files[0])):
        assert (found.basis, found.is_equal) == ("statistics", True)
    found = measure(STATISTICS, {}, None, files[1])
    assert (found.basis, found.is_equal, found.relative_max) == ("statistics", False, 0.25)


def test_a_record_that_has_statistics_needs_no_file(tmp_path: Path) -> None:
    for paths in ((tmp_path / "gone.npy", None), (None, tmp_path / "gone.npy")):
        found = measure(STATISTICS, STATISTICS, *paths)
        assert (found.basis, found.is_equal, found.problem) == ("statistics", True, None)


def test_checksums_come_before_statistics() -> None:
    found = measure({"checksum": "0" * 8, **STATISTICS}, {"checksum": "0" * 8, **STATISTICS})
    assert (found.basis, found.is_equal) == ("checksum", True)


@pytest.mark.parametrize("other", [{"checksum": "0" * 16}, {"checksum": "0" * 8, "dtype": "torch.float64"}, {}])
def test_checksums_that_say_nothing_of_each_other_are_left_aside(other: dict[str, Any]) -> None:
    assert measure({"checksum": "0" * 8, **STATISTICS}, {**other, **STATISTICS}).basis == "statistics"


def test_without_numbers_only_the_structure_is_compared() -> None:
    assert measure({}, STATISTICS) == Measurement("structure", element_count=3)


def test_empty_tensors_are_equal_on_any_basis() -> None:
    found = measure({"shape": (0, 3)}, {"shape": (0, 3)})
    assert found.is_equal and found.element_count == 0


@pytest.mark.parametrize(
    ("fields", "basis"), [({}, "structure"), (STATISTICS, "statistics"), ({"checksum": "0" * 8}, "checksum")]
)
def test_other_shapes_are_a_problem_on_any_basis(fields: dict[str, Any], basis: str, files: tuple[Path, Path]) -> None:
    found = measure({"shape": (2, 3), **fields}, {"shape": (3, 2), **fields})
    assert found.basis == basis
    assert found.problem == "shape [2, 3] against [3, 2]" and found.is_equal is None
    assert measure({"shape": None, **fields}, {"shape": (3, 2), **fields}).problem == "shape unknown against [3, 2]"
    np.save(files[1], np.ones((3, 1)))
    assert measure(fields, {**fields, "shape": (3, 1)}, *files).problem == "shape [3] against [3, 1]"


def test_a_file_that_does_not_hold_what_its_record_says_is_a_problem(files: tuple[Path, Path]) -> None:
    found = measure({"shape": (1, 3)}, {"shape": (1, 3)}, *files)
    assert found.problem == "reference.npy has the shape [3], its record [1, 3]"


def test_the_part_of_a_distributed_tensor_is_compared(files: tuple[Path, Path]) -> None:
    whole = {"shape": (6,), "type": "torch.distributed.tensor.DTensor"}
    assert measure(whole, whole, *files).max_abs_error == 1.0


def test_files_that_cannot_be_read_are_a_problem(files: tuple[Path, Path]) -> None:
    files[1].write_bytes(files[1].read_bytes()[:-1])
    assert measure({}, {}, *files) == Measurement("tensor", problem="candidate.npy is cut off")
    assert measure(STATISTICS, {}, None, files[1]) == Measurement("statistics", problem="candidate.npy is cut off")
    files[0].unlink()
    assert measure({}, {}, *files) == Measurement("tensor", problem="reference.npy is missing")


def test_sparse_files_are_compared_by_the_statistics_of_their_records(files: tuple[Path, Path]) -> None:
    sparse = FILES / "sparse-coo.pt"
    found = measure(STATISTICS, STATISTICS, sparse, sparse)
    assert (found.basis, found.is_equal) == ("statistics", True)
    assert "sparse" in str(measure({}, {}, sparse, sparse).problem)


def test_a_torch_file_is_compared_with_a_numpy_file(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(2, 0, 1))
    shape = {"shape": (4, 2, 3)}
    found = measure(shape, shape, FILES / "transposed.pt", tmp_path / "x.npy")
    assert found.is_equal and found.element_count == 24


@pytest.mark.parametrize("side", [0, 1])
def test_a_tensor_that_is_lost_is_compared_by_its_record(files: tuple[Path, Path], side: int) -> None:
    files[side].unlink()
    same, other = measure(STATISTICS, STATISTICS, *files), measure(STATISTICS, {**STATISTICS, "max": 99999.0}, *files)
    assert (same.basis, same.is_equal, same.problem) == ("statistics", True, None)
    assert (other.basis, other.is_equal, other.max_abs_error) == ("statistics", False, 99996.0)
    assert same.fallback == other.fallback == f"{files[side].name} is missing"


def test_checksums_serve_for_a_lost_tensor_too(files: tuple[Path, Path]) -> None:
    files[1].write_bytes(b"nothing")
    for checksum in ("0" * 8, "1" * 8):
        found = measure({"checksum": "0" * 8}, {"checksum": checksum}, *files)
        assert (found.basis, found.is_equal) == ("checksum", checksum == "0" * 8)
        assert "candidate.npy" in str(found.fallback)


def test_other_shapes_in_the_records_of_a_lost_tensor_are_a_difference(files: tuple[Path, Path]) -> None:
    files[1].unlink()
    assert measure(STATISTICS, {**STATISTICS, "shape": (4,)}, *files).problem == "shape [3] against [4]"


def test_what_the_record_of_a_readable_tensor_lacks_is_computed(files: tuple[Path, Path]) -> None:
    files[1].unlink()
    found = measure({}, STATISTICS, *files)
    assert (found.basis, found.is_equal, found.fallback) == ("statistics", True, "candidate.npy is missing")


def test_a_lost_tensor_of_which_nothing_was_recorded_is_a_problem(files: tuple[Path, Path]) -> None:
    files[1].unlink()
    assert measure(STATISTICS, {}, *files) == Measurement("tensor", problem="candidate.npy is missing")
