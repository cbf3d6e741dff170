"""Files of two folders are paired by name, by number or by shape; never across subfolders."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorprobe.errors import UsageError
from tensorprobe.migrator.edit_distance import EditCosts
from tensorprobe.migrator.name_map import (
    NamePair,
    dtype_in_name,
    find_names,
    natural_key,
    pair_by_name,
    pair_by_number,
    pair_by_shape,
)
from tests.length import count_examples

names = st.lists(
    st.tuples(
        *map(st.sampled_from, (["", "rank1/"], ["", "0_", "12_"], "ab", ["", "_float32", "_bool"], ["", "_0", "_1"]))
    )
    .map("".join)
    .map("{}.npy".format),
    unique=True,
    max_size=12,
)


def test_files_are_found_below_the_folder_in_natural_order(tmp_path: Path) -> None:
    for name in ("10_x.npy", "9_x.npy", "1_x.npy", "rank10/0_x.npy", "rank2/0_x.npy", "note.txt", ".0_x.npy.tmp"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        np.save(tmp_path / "written.npy", np.zeros(1))
        (tmp_path / "written.npy").rename(tmp_path / name)
    assert find_names(tmp_path) == ["1_x.npy", "9_x.npy", "10_x.npy", "rank2/0_x.npy", "rank10/0_x.npy"]


def test_links_to_folders_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "self").symlink_to(tmp_path)
    (tmp_path / "0_x.npy").touch()
    assert find_names(tmp_path) == ["0_x.npy"]


def test_a_folder_that_cannot_be_listed_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone cannot be listed \(No such file or directory\)"):
        find_names(tmp_path / "gone")


@given(st.lists(st.text("a1_/0x", max_size=8)))
def test_any_names_have_an_order(found: list[str]) -> None:
    backwards = sorted(found, reverse=True)
    assert sorted(backwards, key=natural_key) == sorted(found, key=natural_key)


def test_the_same_names_are_paired_and_the_others_stand_alone_at_their_place() -> None:
    pairs = pair_by_name(["0_x.npy", "1_y.npy", "10_z.npy"], ["0_x.npy", "2_y.npy", "10_z.npy"])
    assert pairs == [("0_x.npy", "0_x.npy"), ("1_y.npy", None), (None, "2_y.npy"), ("10_z.npy", "10_z.npy")]


@pytest.mark.parametrize(
    "other",
    [
        ["input_float32_0.npy", "dense_float32_1.npy", "dense_backward_float32_2.npy", "dense_float32_3.npy"],
        ["input_float32_0.npy", "dense_float32_0.npy", "dense_backward_float32_0.npy", "dense_float32_1.npy"],
    ],
    ids=["the number counts all", "the number counts its name"],
)
def test_the_spelling_of_mindspore_is_the_same_name(other: list[str]) -> None:
    ours = ["0_input.npy", "1_dense.npy", "2_dense_backward.npy", "3_dense.npy"]
    assert pair_by_name(ours, other) == list(zip(ours, other, strict=True))
    assert sorted(pair_by_name(other, ours)) == sorted(zip(other, ours, strict=True))


def test_two_spellings_are_only_paired_in_the_same_subfolder() -> None:
    pairs = pair_by_name(["rank0/0_x.npy"], ["rank1/x_float32_0.npy"])
    assert pairs == [("rank0/0_x.npy", None), (None, "rank1/x_float32_0.npy")]


def test_names_that_differ_only_in_their_number_are_not_the_same() -> None:
    assert pair_by_name(["3_x.npy"], ["4_x.npy"]) == [("3_x.npy", None), (None, "4_x.npy")]


@settings(max_examples=count_examples(40))
@given(names, names)
def test_every_file_is_in_one_pair(reference: list[str], candidate: list[str]) -> None:
    shapes = {name: (len(name),) for name in reference}, {name: (len(name),) for name in candidate}
    ways: list[list[NamePair]] = [
        pair_by_name(reference, candidate),
        pair_by_number(reference, candidate),
        pair_by_shape(*shapes, EditCosts()),
    ]
    for pairs in ways:
        assert sorted(first for first, _ in pairs if first is not None) == sorted(reference)
        assert sorted(second for _, second in pairs if second is not None) == sorted(candidate)
        assert (None, None) not in pairs
        folders = [{name.rpartition("/")[0] for name in pair if name is not None} for pair in pairs]
        assert all(len(found) == 1 for found in folders)


def test_numbers_pair_the_first_with_the_first_even_where_some_names_have_none() -> None:
    pairs = pair_by_number(["10_a.npy", "2_b.npy", "start.npy"], ["7_c.npy", "begin.npy", "30_d.npy", "40_e.npy"])
    assert pairs == [
        ("start.npy", "begin.npy"),
        ("2_b.npy", "7_c.npy"),
        ("10_a.npy", "30_d.npy"),
        (None, "40_e.npy"),
    ]


def test_another_order_can_be_given() -> None:
    pairs = pair_by_number(["0_b.npy", "1_a.npy"], ["0_a.npy", "1_b.npy"], lambda name: name.split("_")[1])
    assert pairs == [("1_a.npy", "0_a.npy"), ("0_b.npy", "1_b.npy")]


def test_shapes_pair_what_is_left_when_a_file_is_missing() -> None:
    reference = {"0_a.npy": (2,), "1_b.npy": (3, 4), "2_c.npy": (5,)}
    candidate = {"0_x.npy": (2,), "1_z.npy": (5,)}
    assert pair_by_shape(reference, candidate, EditCosts()) == [
        ("0_a.npy", "0_x.npy"),
        ("1_b.npy", None),
        ("2_c.npy", "1_z.npy"),
    ]


def test_the_spelling_of_mindspore_is_ordered_by_its_number_not_by_its_name_or_dtype() -> None:
    ours = {"0_input.npy": (1, 3), "1_dense.npy": (1, 2), "2_half.npy": (1, 2)}
    other = {"dense_float32_1.npy": (1, 2), "half_float16_2.npy": (1, 2), "input_float32_0.npy": (1, 3)}
    expected = list(zip(ours, ["input_float32_0.npy", "dense_float32_1.npy", "half_float16_2.npy"], strict=True))
    assert pair_by_number(ours, other) == expected
    assert pair_by_shape(dict(ours), dict(other), EditCosts()) == expected


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("x_float32_0.npy", "float32"),
        ("rank0/x_bfloat16_3.npy", "bfloat16"),
        ("x_float8_e4m3fn_0.npy", "float8_e4m3fn"),
        ("0_x.npy", None),
        ("0_x_float32_1.npy", None),
        ("x_word_0.npy", None),
    ],
)
def test_a_dtype_in_a_name_is_known(name: str, dtype: str | None) -> None:
    assert dtype_in_name(name) == dtype
