"""Layers of api_dump in the words of functions, so that a layer and a function that do the same can be paired."""

from __future__ import annotations

import pytest

from tensorprobe.word.layer_word import layer_functions, layer_word


@pytest.mark.parametrize(
    ("framework", "layer", "word"),
    [
        ("pytorch", "Linear", "linear"),
        ("mindspore", "Dense", "linear"),
        ("pytorch", "LayerNorm", "layer_norm"),
        ("mindspore", "LayerNorm", "layer_norm"),
        ("pytorch", "ReLU", "relu"),
        ("mindspore", "ReLU", "relu"),
        ("pytorch", "BatchNorm2d", "batch_norm"),
        ("mindspore", "Conv2dTranspose", "conv_transpose2d"),
        ("pytorch", "ConvTranspose2d", "conv_transpose2d"),
        ("pytorch", "MaxPool2d", "max_pool2d"),
        ("pytorch", "MSELoss", "mse_loss"),
        ("pytorch", "LSTM", "lstm"),
    ],
)
def test_a_layer_has_the_word_of_its_function(framework: str, layer: str, word: str) -> None:
    assert layer_word(framework, layer) == word


def test_only_what_the_rule_does_not_give_is_in_the_table() -> None:
    assert all(name and word.islower() for name, word in layer_functions().items())
