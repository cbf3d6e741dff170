"""What differs between the circumstances of two runs, and what cannot."""

from __future__ import annotations

from tensorprobe.compare.circumstance import compare_circumstances

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


def test_a_run_without_circumstances_has_no_differences() -> None:
    assert compare_circumstances(TORCH, {}) == ()
