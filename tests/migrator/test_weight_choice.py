"""Networks with other names in both frameworks: right after a conversion, or said to be ambiguous with the choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch

from tensorprobe import UsageError
from tensorprobe.migrator import convert_weight
from tests.migrator.test_weight import TorchCnn, write_safetensors
from tests.migrator.weight_network import (
    WORDS,
    CellLlama,
    CellUnet,
    TorchLlama,
    TorchUnet,
    randomize,
)

ms.runtime.launch_blocking()
IDS = np.random.default_rng(0).integers(0, WORDS, (2, 5))
IMAGE = np.random.default_rng(0).standard_normal((1, 3, 8, 8)).astype(np.float32)
ENCODER = ("enc1", "enc2", "bottleneck", "dec2", "dec1")


def losses(module: torch.nn.Module, cell: Any, data: np.ndarray) -> tuple[float, float]:
    """Of both networks, in units of the first."""
    wanted = module(torch.from_numpy(data)).detach().numpy()
    found = cell.set_train(False)(ms.Tensor(data)).asnumpy()
    scale = float(np.square(wanted).mean())
    return 1.0, float(np.square(found).mean()) / scale


@pytest.mark.parametrize(
    "norms",
    [("attention_norm", "ffn_norm"), ("norm1", "norm2"), ("ln_1", "ln_2"), ("input_norm", "post_attention_norm")],
    ids="/".join,
)
def test_the_norms_of_a_llama_keep_their_places(norms: tuple[str, str]) -> None:
    module, cell = randomize(TorchLlama()), CellLlama(norms)

    result = convert_weight(module, cell, load=True)

    assert result, result.report
    np.testing.assert_allclose(*losses(module, cell, IDS), rtol=1e-5)


def test_norms_whose_names_say_nothing_are_ambiguous_and_a_line_of_mapping_chooses() -> None:
    module, cell = randomize(TorchLlama()), CellLlama(("norm_a", "norm_b"))

    unclear = convert_weight(module, cell)

    assert not unclear and len(unclear.report.having("ambiguous")) == 8
    assert "8 ambiguous" in unclear.report.summary
    hint = '  mapping={"model.layers.*.input_layernorm": "layers.*.norm_a" or "layers.*.norm_b"}'
    assert hint in str(unclear.report).splitlines()
    assert not any("norm_" in name for name in unclear.arrays)
    mapping = {
        "model.layers.*.input_layernorm": "layers.*.norm_a",
        "model.layers.*.post_attention_layernorm": "layers.*.norm_b",
    }
    assert convert_weight(module, cell, load=True, mapping=mapping)
    np.testing.assert_allclose(*losses(module, cell, IDS), rtol=1e-5)


@pytest.mark.parametrize(
    "names", [ENCODER, ("stage_a", "stage_b", "stage_c", "stage_d", "stage_e")], ids=["known", "unknown"]
)
def test_a_u_net_is_mapped_the_same_from_every_kind_of_file(names: tuple[str, ...], tmp_path: Path) -> None:
    module, cell = randomize(TorchUnet()), CellUnet(names)
    state = {key: value for key, value in module.state_dict().items() if "num_batches" not in key}
    arrays = {key: value.numpy() for key, value in state.items()}
    torch.save(state, tmp_path / "a.pt")
    write_safetensors(tmp_path / "a.safetensors", dict(sorted(arrays.items())))
    backward = dict(reversed(arrays.items()))

    rows = [
        {(row.source and row.source.name, row.target and row.target.name, row.status) for row in found.rows}
        for found in (
            convert_weight(source, cell)
            for source in (tmp_path / "a.pt", tmp_path / "a.safetensors", state, arrays, backward)
        )
    ]

    assert all(found == rows[0] for found in rows)
    mapped = {source: target for source, target, status in rows[0] if status == "mapped"}
    right = dict(zip(("down1", "down2", "mid", "up2", "up1", "out"), (*names, "out"), strict=True))
    assert all(right[source.split(".")[0]] == target.split(".")[0] for source, target in mapped.items())


def test_the_way_up_of_a_u_net_is_chosen_by_two_modules() -> None:
    module, cell = randomize(TorchUnet()), CellUnet(ENCODER)

    unclear = convert_weight(module, cell)
    chosen = convert_weight(module, cell, load=True, mapping={"up1": "dec1", "up2": "dec2"})

    assert {row.source.name.split(".")[0] for row in unclear.report.having("ambiguous") if row.source} == {"up1", "up2"}
    assert chosen, chosen.report
    np.testing.assert_allclose(*losses(module, cell, IMAGE), rtol=1e-5)


def test_a_dictionary_of_numpy_arrays_is_a_source_and_a_target() -> None:
    module, cell = randomize(TorchLlama()), CellLlama()
    arrays = {key: value.numpy() for key, value in module.state_dict().items()}

    result = convert_weight(arrays, cell, load=True)
    back = convert_weight(cell, arrays)
    named = convert_weight(arrays, {parameter.name: parameter.asnumpy() for parameter in cell.get_parameters()})

    assert result and back and named and (back.framework, named.framework) == ("pytorch", "mindspore")
    np.testing.assert_allclose(*losses(module, cell, IDS), rtol=1e-5)
    assert all(np.array_equal(back.arrays[key], value) for key, value in arrays.items())


def test_numpy_arrays_without_a_target_need_to_be_told_whose_names_they_shall_have() -> None:
    arrays = {key: value.numpy() for key, value in TorchCnn().state_dict().items()}

    assert "bn.gamma" in convert_weight(arrays, to="mindspore").arrays
    assert "bn.weight" in convert_weight({"bn.gamma": np.ones(3, np.float32)}).arrays
    with pytest.raises(UsageError, match='has no framework: pass a target, or to="mindspore" or "pytorch"'):
        convert_weight(arrays)
