"""Small models of many kinds, with random weights: each a model and one training step of it. Most need transformers."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

os.environ.setdefault("HF_HUB_OFFLINE", "1")
WORDS = 97
_SMALL = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
}


@dataclass(frozen=True)
class Trial:
    """A model and its loss, for floating-point data of any dtype."""

    model: nn.Module
    loss: Callable[[torch.dtype], torch.Tensor]


class ConvNet(nn.Module):
    """BatchNorm, an in-place ReLU, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(inplace=True),
            nn.Conv2d(8, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(inplace=True),
            nn.Dropout(0.2),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(256, 10),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Reader(nn.Module):
    """A bidirectional LSTM of two layers, with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 16)
        self.lstm = nn.LSTM(16, 20, 2, bidirectional=True, batch_first=True, dropout=0.2)
        self.head = nn.Linear(40, WORDS)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(self.words(tokens))[0])


class Convolution(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(self.norm(self.convolution(x)))


class UNet(nn.Module):
    """Down, up again, and across; trained to undo noise."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.deepest = Convolution(3, 8), Convolution(8, 16), Convolution(16, 16)
        self.up, self.last, self.out = nn.ConvTranspose2d(16, 8, 2, stride=2), Convolution(16, 8), nn.Conv2d(8, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.first(x)
        second = self.second(F.avg_pool2d(first, 2))
        return self.out(self.last(torch.cat([self.up(self.deepest(second) + second), first], 1)))


def _tokens() -> torch.Tensor:
    return torch.randint(0, WORDS, (2, 12))


def _classify(model: nn.Module) -> Trial:
    x, y = torch.randn(4, 3, 16, 16), torch.randint(0, 10, (4,))
    return Trial(model, lambda dtype: F.cross_entropy(model(x.to(dtype)), y))


def _undo_noise(model: nn.Module) -> Trial:
    x, noise = torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16)

    def loss(dtype: torch.dtype) -> torch.Tensor:
        share = torch.rand(2, 1, 1, 1)
        return F.mse_loss(model(((1 - share) * x + share * noise).to(dtype)), (noise - x).to(dtype))

    return Trial(model, loss)


def _predict(model: nn.Module) -> Trial:
    tokens = _tokens()
    return Trial(model, lambda dtype: F.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()))


def _language_model(model: nn.Module) -> Trial:
    tokens = _tokens()
    return Trial(model, lambda dtype: model(input_ids=tokens, labels=tokens).loss)


def _image_model(model: nn.Module) -> Trial:
    x, y = torch.randn(2, 3, 16, 16), torch.randint(0, 5, (2,))
    return Trial(model, lambda dtype: model(pixel_values=x.to(dtype), labels=y).loss)


def _sound_model(model: nn.Module) -> Trial:
    x, tokens = torch.randn(2, 8, 40), _tokens()
    return Trial(model, lambda dtype: model(input_features=x.to(dtype), labels=tokens).loss)


def _gpt() -> nn.Module:
    from gpt import GPT, Size

    return GPT(Size(layers=2, width=32, heads=4, batch=2, tokens=12, words=WORDS, dtype=torch.float32))


def _transformer(name: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        import transformers

        return getattr(transformers, name)(getattr(transformers, config)(**settings))

    return make


_WHISPER = {
    "vocab_size": WORDS,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 8,
    "max_source_positions": 20,
    "max_target_positions": 40,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 3,
    "dropout": 0.1,
}
_T5 = {
    "vocab_size": WORDS,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
}
_ATTENTION = {**_SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
_VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 16,
    "patch_size": 4,
    "num_labels": 5,
}
_MAMBA = {"vocab_size": WORDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

_MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Trial]]] = {
    "GPT": (_gpt, _predict),
    "CNN": (ConvNet, _classify),
    "LSTM": (Reader, _predict),
    "U-Net": (UNet, _undo_noise),
    "Llama": (_transformer("LlamaForCausalLM", "LlamaConfig", **_ATTENTION), _language_model),
    "T5": (_transformer("T5ForConditionalGeneration", "T5Config", **_T5), _language_model),
    "Mixtral": (
        _transformer("MixtralForCausalLM", "MixtralConfig", num_local_experts=4, **_ATTENTION),
        _language_model,
    ),
    "Mamba": (_transformer("MambaForCausalLM", "MambaConfig", **_MAMBA), _language_model),
    "ViT": (_transformer("ViTForImageClassification", "ViTConfig", **_VIT), _image_model),
    "Whisper": (_transformer("WhisperForConditionalGeneration", "WhisperConfig", **_WHISPER), _sound_model),
}
NAMES = tuple(_MODELS)


def make_trial(name: str, dtype: torch.dtype = torch.float32) -> Trial:
    """Always the same weights and the same data."""
    torch.manual_seed(0)
    make, use = _MODELS[name]
    return use(make().to(dtype).train())
