"""A name in a dump calls nothing but what computes."""

from __future__ import annotations

import pytest

from tensorprobe.capture.torch.function import UnknownFunctionError, base_op, find_function

HARMLESS = [
    ("Functional", "linear"),
    ("Functional", "max_pool2d"),
    ("Functional", "scaled_dot_product_attention"),
    ("Torch", "einsum"),
    ("Torch", "linalg.norm"),
    ("Torch", "fft.rfft"),
    ("Torch", "lstm"),
    ("Tensor", "__getitem__"),
    ("Tensor", "__iadd__"),
    ("Tensor", "__rsub__"),
    ("Ops", "aten.add.Tensor"),
]
HARMFUL = [
    ("Torch", "load"),
    ("Torch", "save"),
    ("Torch", "from_file"),
    ("Torch", "compile"),
    ("Torch", "hub.load"),
    ("Torch", "set_num_threads"),
    ("Functional", "boolean_dispatch"),
    ("Functional", "_overload"),
    ("Functional", "warnings"),
    ("Tensor", "__reduce_ex__"),
    ("Tensor", "__class__"),
    ("Tensor", "_make_subclass"),
    ("Tensor", "_typed_storage"),
    ("Tensor", "apply_"),
    ("Ops", "aten.from_file"),
    ("Ops", "aten.from_file.default"),
    ("Ops", "aten.from_file.out"),
    ("Ops", "aten.set_.source_Storage"),
    ("Ops", "other.op.default"),
    ("Module", "linear"),
]


@pytest.mark.parametrize(("prefix", "op"), HARMLESS)
def test_what_computes_is_found(prefix: str, op: str) -> None:
    assert callable(find_function(prefix, op))


@pytest.mark.parametrize(("prefix", "op"), HARMFUL)
def test_what_opens_files_runs_code_or_hands_out_memory_is_not(prefix: str, op: str) -> None:
    with pytest.raises(UnknownFunctionError, match="no function of torch that is known here"):
        find_function(prefix, op)


def test_an_operator_is_known_without_its_overload() -> None:
    assert base_op("Ops", "aten.empty.memory_format") == "empty"
    assert base_op("Torch", "linalg.norm") == "norm"
