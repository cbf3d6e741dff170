"""What is known of an operation is known of all its spellings."""

from __future__ import annotations

import pytest

from tensorprobe.word.operation import is_a, plain_op


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("__add__", "add"),
        ("__iadd__", "add"),
        ("__rsub__", "sub"),
        ("__imatmul__", "matmul"),
        ("__invert__", "invert"),
        ("__rshift__", "rshift"),
        ("add_", "add"),
        ("aten.add.Tensor", "add"),
        ("aten.add_.Tensor", "add"),
        ("linear", "linear"),
        ("____", "____"),
        ("_", "_"),
    ],
)
def test_an_operation_is_known_by_its_plain_word(op: str, expected: str) -> None:
    assert plain_op(op) == expected


def test_an_operator_and_its_in_place_form_are_of_the_kind_of_their_operation() -> None:
    for op in ("add", "__add__", "__radd__", "__iadd__", "add_", "aten.add.Tensor"):
        assert is_a(op, "addition"), op
    assert is_a("__matmul__", "contraction") and is_a("Linear", "contraction")
    assert not is_a("relu", "addition")
