"""Arguments that are no tensors: their type and value, never their address."""

from __future__ import annotations

import enum
import json
from typing import Any

import numpy as np
import pytest

from tensorprobe.capture.describe import describe_plain
from tensorprobe.store.encode import encode_tree


class Mode(enum.Enum):
    MEAN = 1


class Width(int):
    pass


class Thing:
    pass


@pytest.mark.parametrize(
    ("value", "leaf"),
    [
        (3, {"type": "int", "value": 3}),
        (True, {"type": "bool", "value": True}),
        (0.5, {"type": "float", "value": 0.5}),
        ("sum", {"type": "str", "value": "sum"}),
        (2 + 1j, {"type": "complex", "value": "(2+1j)"}),
        (slice(0, None, 2), {"type": "slice", "value": [0, None, 2]}),
        (..., {"type": "ellipsis"}),
        (np.float32(0.5), {"type": "numpy.float32", "value": 0.5}),
        (Mode.MEAN, {"type": f"{__name__}.Mode", "value": "MEAN"}),
        (Width(4), {"type": f"{__name__}.Width", "value": 4}),
        (len, {"type": "builtin_function_or_method", "value": "len"}),
        (Thing, {"type": "type", "value": "Thing"}),
        (Thing(), {"type": f"{__name__}.Thing"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_plain_value_is_described_by_type_and_value(value: Any, leaf: dict[str, Any]) -> None:
    assert describe_plain(value) == leaf
    json.loads(encode_tree(leaf))


def test_a_long_text_is_cut() -> None:
    leaf = describe_plain("x" * 5000)
    assert isinstance(leaf, dict) and len(leaf["value"]) < 1100


def test_a_numpy_array_has_statistics_without_its_nans() -> None:
    leaf = json.loads(encode_tree(describe_plain(np.array([1.0, np.nan, -3.0, np.inf]))))
    assert leaf["type"] == "numpy.ndarray"
    assert (leaf["Max"], leaf["Min"], leaf["nan_count"], leaf["inf_count"]) == (np.inf, -3.0, 1, 1)


def test_a_numpy_array_of_integers_keeps_its_exact_extremes() -> None:
    leaf = json.loads(encode_tree(describe_plain(np.array([2**62 + 1, -(2**62) - 1]))))
    assert (leaf["Max"], leaf["Min"]) == (2**62 + 1, -(2**62) - 1)


def test_a_numpy_dtype_with_quotes_in_it_does_not_break_the_line() -> None:
    array = np.zeros(2, dtype=[('a"b', "f4")])
    assert json.loads(encode_tree(describe_plain(array)))["shape"] == [2]


def test_an_array_without_elements_says_so() -> None:
    assert json.loads(encode_tree(describe_plain(np.zeros(0))))["reason"] == "empty"
