"""What differs between the circumstances of two runs, and what cannot."""

from __future__ import annotations

from typing import Any

import pytest

from tensorprobe.compare.circumstance import NOT_REPEATED, compare_circumstances, find_unrepeated

TORCH = {"framework": "pytorch", "versions": {"torch": "2.13.0"}, "settings": {"threads": 2, "numpy_state": 1}}
MINDSPORE = {"framework": "mindspore", "versions": {"mindspore": "2.10.0"}, "settings": {"mode": "x", "numpy_state": 2}}


def test_two_frameworks_are_told_apart_by_what_both_know() -> None:
    assert [key for key, _, _ in compare_circumstances(TORCH, MINDSPORE)] == [
        "framework",
        "versions.torch",
        "versions.mindspore",
        "settings.numpy_state",
    ]


def test_a_setting_that_one_run_of_a_framework_lacks_is_a_difference() -> None:
    other = {**TORCH, "settings": {"numpy_state": 1}}
    assert compare_circumstances(TORCH, other) == (("settings.threads", 2, None),)


def test_a_table_that_only_one_run_has_is_one_difference() -> None:
    without = {"framework": "pytorch", "versions": "unknown"}
    settings = TORCH["settings"]
    expected = [("versions", {"torch": "2.13.0"}, "unknown"), ("settings", settings, None)]
    assert list(compare_circumstances(TORCH, without)) == expected
    assert [key for key, _, _ in compare_circumstances(without, TORCH)] == ["versions", "settings"]


def test_differences_are_named_by_their_path_to_a_depth_of_four() -> None:
    nested = [{"settings": {"a": {"b": {"c": {"d": {"e": value}}}}}} for value in (1, 2)]
    assert compare_circumstances(*nested) == (("settings.a.b.c.d", {"e": 1}, {"e": 2}),)


def test_a_run_without_circumstances_has_no_differences() -> None:
    assert compare_circumstances(TORCH, {}) == ()


ON_CPU = {"framework": "mindspore", "devices": ["CPU"], "settings": {"threads_num_is_set": False}}
REPEATING = {**ON_CPU, "settings": {"threads_num_is_set": True}}


@pytest.mark.parametrize(
    "candidate",
    [ON_CPU, REPEATING, {**ON_CPU, "framework": "mindtorch"}, {**ON_CPU, "settings": {}}, {**ON_CPU, "settings": None}],
    ids=["both", "one", "msadapter", "an older version", "damaged"],
)
def test_of_mindspore_on_a_cpu_it_is_said_that_it_may_not_repeat_its_bits_and_what_to_set(
    candidate: dict[str, Any],
) -> None:
    assert find_unrepeated(ON_CPU, candidate) == find_unrepeated(candidate, ON_CPU) == (NOT_REPEATED,)


@pytest.mark.parametrize(
    ("reference", "candidate"),
    [(REPEATING, REPEATING), (ON_CPU, {**ON_CPU, "devices": ["Ascend"]}), (ON_CPU, TORCH), (TORCH, TORCH), ({}, {})],
    ids=["set in both", "another device", "another framework", "no mindspore", "nothing known"],
)
def test_where_something_else_must_be_the_reason_nothing_is_said(
    reference: dict[str, Any], candidate: dict[str, Any]
) -> None:
    assert find_unrepeated(reference, candidate) == ()
