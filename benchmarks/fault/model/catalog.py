"""All models, and which of them tuning may look at."""

from __future__ import annotations

from collections.abc import Callable

from fault.model.cnn import build_cnn
from fault.model.encoder_decoder import build_encoder_decoder
from fault.model.gpt import build_gpt
from fault.model.llama import build_llama
from fault.model.lstm import build_lstm
from fault.place import Plan
from fault.program import Program

MODELS: dict[str, Callable[[Plan], Program]] = {
    "gpt": build_gpt,
    "cnn": build_cnn,
    "lstm": build_lstm,
    "encoder_decoder": build_encoder_decoder,
    "llama": build_llama,
}
HELD_OUT: tuple[str, ...] = ()
"""Models that nobody looks at while compare is tuned."""
