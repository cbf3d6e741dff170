"""All models, and which of them tuning may look at."""

from __future__ import annotations

import functools
from collections.abc import Callable

from fault.place import Plan
from fault.program import Program
from fault.pytorch.model.cnn import build_cnn
from fault.pytorch.model.encoder_decoder import build_encoder_decoder
from fault.pytorch.model.gpt import build_gpt
from fault.pytorch.model.gru import build_gru
from fault.pytorch.model.llama import build_llama
from fault.pytorch.model.lstm import build_lstm
from fault.pytorch.model.mixer import build_mixer
from fault.pytorch.model.t5 import build_t5
from fault.pytorch.model.unet import build_unet

DEEP_LAYERS = 24

MODELS: dict[str, Callable[[Plan], Program]] = {
    "gpt": build_gpt,
    "cnn": build_cnn,
    "lstm": build_lstm,
    "encoder_decoder": build_encoder_decoder,
    "llama": build_llama,
    "gpt_deep": functools.partial(build_gpt, layers=DEEP_LAYERS),
    "mixer": build_mixer,
    "gru": build_gru,
    "unet": build_unet,
    "t5": build_t5,
}
DEEP = ("gpt_deep",)
"""Models in which rounding has far to go: for pairs without a fault, and when they are asked for by name."""
HELD_OUT = ("mixer", "gru", "unet", "t5")
"""Models that nobody looks at while compare is tuned."""
