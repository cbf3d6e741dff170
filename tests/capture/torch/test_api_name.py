"""What functions are called in a record, and what is left out by default."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from tensorprobe.capture.torch.api_name import ApiNames, qualified_name, split_name
from tensorprobe.config.api_list import load_api_list


@pytest.mark.parametrize(
    ("function", "stem"),
    [
        (F.linear, "Functional.linear"),
        (F.relu, "Functional.relu"),
        (F.scaled_dot_product_attention, "Functional.scaled_dot_product_attention"),
        (torch.softmax, "Torch.softmax"),
        (torch.linalg.norm, "Torch.linalg.norm"),
        (torch.fft.fft, "Torch.fft.fft"),
        (torch.lstm, "Torch.lstm"),
        (torch.Tensor.add, "Tensor.add"),
        (torch.Tensor.__getitem__, "Tensor.__getitem__"),
        (torch.ops.aten.add, "Ops.aten.add"),
        (torch.ops.aten.add.Tensor, "Ops.aten.add.Tensor"),
    ],
)
def test_a_function_of_torch_has_the_name_of_the_manual(function: object, stem: str) -> None:
    api = ApiNames(None).find(function)
    assert api.stem == stem
    assert api.is_recorded


@pytest.mark.parametrize(
    ("qualified", "expected"),
    [
        ("torch_npu.npu_rms_norm", ("NPU", "npu_rms_norm")),
        ("npu.npu_fusion_attention", ("NPU", "npu_fusion_attention")),
        ("torch.distributed.all_reduce", ("Distributed", "all_reduce")),
        ("my_library.fused_norm", ("Ops", "my_library.fused_norm")),
    ],
)
def test_prefixes_tell_where_a_function_comes_from(qualified: str, expected: tuple[str, str]) -> None:
    assert split_name(qualified) == expected


@pytest.mark.parametrize("function", [torch.Tensor.size, torch.Tensor.dim, torch.Tensor.shape.__get__, torch.numel])
def test_what_computes_nothing_is_excluded_by_default(function: object) -> None:
    assert not ApiNames(None).find(function).is_recorded


def test_every_public_function_that_torch_lets_be_overridden_has_a_name() -> None:
    names = ApiNames(None)
    functions = [function for group in torch.overrides.get_overridable_functions().values() for function in group]
    stems = {names.find(function).stem for function in functions}
    assert len(functions) > 1000
    assert not [stem for stem in stems if not stem.split(".")[1]]


def test_a_user_can_remove_and_add_apis(tmp_path: Path) -> None:
    path = tmp_path / "api.yaml"
    path.write_text("functional:\n  - conv1d\ntensor:\n  add: [size]\n  remove: [add]\n")
    names = ApiNames(load_api_list(path))
    assert names.find(F.conv1d).is_recorded
    assert not names.find(F.conv2d).is_recorded
    assert names.find(torch.Tensor.size).is_recorded
    assert not names.find(torch.Tensor.add).is_recorded
    assert names.find(torch.Tensor.mul).is_recorded


def test_an_unknown_callable_is_named_by_its_own_path() -> None:
    def fused(x: object) -> object:
        return x

    assert qualified_name(fused).endswith("fused")


def test_of_several_names_of_a_function_the_one_is_told_that_can_be_called_again() -> None:
    assert torch.mm == torch.spmm and qualified_name(torch.mm) == qualified_name(torch.spmm) == "torch.mm"
