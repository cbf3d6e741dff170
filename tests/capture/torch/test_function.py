"""A name in a dump calls nothing but what computes."""

from __future__ import annotations

import pytest
import torch

from tensorprobe.capture.torch.function import _CALLABLE, UnknownFunctionError, base_op, find_function

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
    ("Ops", "aten.save"),
    ("Ops", "aten.save.default"),
    ("Ops", "aten.manual_seed"),
    ("Ops", "aten.set_grad_enabled"),
    ("Ops", "aten.wait"),
    ("Ops", "aten.add.str"),
    ("Ops", "aten.mul.left_t"),
    ("Ops", "aten.max_pool2d_with_indices_backward"),
    ("Torch", "manual_seed"),
    ("Torch", "set_default_dtype"),
    ("Torch", "set_default_device"),
    ("Torch", "use_deterministic_algorithms"),
    ("Torch", "_cufft_set_plan_cache_max_size"),
    ("Torch", "_from_blob"),
    ("Torch", "torch.add"),
    ("Torch", "linalg.torch.add"),
    ("Torch", "linalg.lu_solve"),
    ("Torch", "special.laguerre_polynomial_l"),
    ("Tensor", "set_"),
    ("Tensor", "register_hook"),
    ("Tensor", "const_data_ptr"),
    ("Tensor", "grad.__get__"),
    ("Functional", "triplet_margin_with_distance_loss"),
]


@pytest.mark.parametrize(("prefix", "op"), HARMLESS)
def test_what_computes_is_found(prefix: str, op: str) -> None:
    assert callable(find_function(prefix, op))


@pytest.mark.parametrize(("prefix", "op"), HARMFUL)
def test_what_opens_files_runs_code_or_hands_out_memory_is_not(prefix: str, op: str) -> None:
    with pytest.raises(UnknownFunctionError, match="no function of torch that is known here"):
        find_function(prefix, op)


def test_what_is_listed_takes_no_function_and_touches_no_file() -> None:
    """A list is only as good as what is on it: whatever says by its own name what it does is not."""
    words = ("save", "load", "file", "storage", "_ptr", "hook", "set_", "seed", "compile", "thread", "backend", "blob")
    known = {"_foreach", "_fused"}
    for space, names in _CALLABLE.items():
        for name in names:
            found = [word for word in words if word in name and not name.startswith(tuple(known))]
            assert not found, (space, name)


def test_an_operator_without_its_overload_is_one_of_tensors() -> None:
    multiply = find_function("Ops", "aten.mul")
    assert torch.equal(multiply(torch.ones(2), 3), torch.full((2,), 3.0))
    with pytest.raises((RuntimeError, UnknownFunctionError)):
        multiply([1], 10**9)


def test_an_operator_is_known_without_its_overload() -> None:
    assert base_op("Ops", "aten.empty.memory_format") == "empty"
    assert base_op("Torch", "linalg.norm") == "norm"
