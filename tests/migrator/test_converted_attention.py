"""An attention with one matrix for query, key and value, and one with three, compute the same after a conversion."""

from __future__ import annotations

from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from tensorprobe.migrator import convert_weight
from tests.migrator.weight_network import WIDTH, CellSplit, TorchFused, randomize

ms.runtime.launch_blocking()
DATA = np.random.default_rng(0).standard_normal((2, 5, WIDTH)).astype(np.float32)
BLOCKS = {"attn.qkv": ["attn.q_proj", "attn.k_proj", "attn.v_proj"]}


def assert_same(module: torch.nn.Module, cell: Any) -> None:
    wanted = module(torch.from_numpy(DATA)).detach().numpy()
    np.testing.assert_allclose(cell(ms.Tensor(DATA)).asnumpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("names", [("q_proj", "k_proj", "v_proj", "out_proj"), ("wq", "wk", "wv", "wo")])
@pytest.mark.parametrize("kind", ["in_proj", "c_attn"])
def test_one_matrix_is_cut_into_three_and_put_together_again(kind: str, names: tuple[str, ...]) -> None:
    module, cell = randomize(TorchFused(kind)), CellSplit(names)

    there = convert_weight(module, cell, load=True)
    back = convert_weight(cell, TorchFused(kind))

    assert there, there.report
    assert_same(module, cell)
    assert back, back.report
    assert back.state_dict.keys() == module.state_dict().keys()
    assert all(torch.equal(back.state_dict[key], value) for key, value in module.state_dict().items())


def test_how_the_parts_lie_is_asked_where_the_name_does_not_say_it() -> None:
    module, cell = randomize(TorchFused("qkv")), CellSplit()

    unclear = convert_weight(module, cell)
    chosen = convert_weight(module, cell, load=True, mapping=BLOCKS)

    assert not unclear and list(unclear.arrays) == ["attn.out_proj.weight", "attn.out_proj.bias"]
    assert '  mapping={"attn.qkv": ["attn.q_proj", "attn.k_proj", "attn.v_proj"]}' in str(unclear.report).splitlines()
    assert chosen, chosen.report
    assert_same(module, cell)


def test_the_question_is_asked_in_the_other_direction_too() -> None:
    module, cell = TorchFused("qkv"), CellSplit()

    unclear = convert_weight(cell, module)

    assert not unclear
    hint = '  mapping={("attn.q_proj", "attn.k_proj", "attn.v_proj"): "attn.qkv"}'
    assert hint in str(unclear.report).splitlines()
    assert convert_weight(cell, module, load=True, mapping={tuple(BLOCKS["attn.qkv"]): "attn.qkv"})
    assert_same(module, cell)


def test_the_matrix_of_a_gpt_of_transformers_is_turned_and_cut() -> None:
    pytorch_utils = pytest.importorskip("transformers.pytorch_utils")
    module = TorchFused("c_attn")
    module.attn["c_attn"] = pytorch_utils.Conv1D(3 * WIDTH, WIDTH)
    module.attn["out_proj"] = pytorch_utils.Conv1D(WIDTH, WIDTH)
    cell = CellSplit()

    result = convert_weight(randomize(module), cell, load=True)

    assert result, result.report
    assert_same(module, cell)
