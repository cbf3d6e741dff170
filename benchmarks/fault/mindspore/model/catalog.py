"""All models, and which of them tuning may look at."""

from __future__ import annotations

from collections.abc import Callable

from fault.mindspore.model.cnn import build_cnn
from fault.mindspore.model.gpt import build_gpt
from fault.mindspore.model.lstm import build_lstm
from fault.place import Plan
from fault.program import Program

MODELS: dict[str, Callable[[Plan], Program]] = {"gpt": build_gpt, "cnn": build_cnn, "lstm": build_lstm}
HELD_OUT: tuple[str, ...] = ()
