"""Models of transformers and diffusers that no other benchmark uses, tiny, with faults."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from held_out.model import Model
from held_out.third_party.diffusion import DIFFUSION_MODELS
from held_out.third_party.encoder import ENCODER_MODELS
from held_out.third_party.expert import EXPERT_MODELS
from held_out.third_party.image import IMAGE_MODELS
from held_out.third_party.language import LANGUAGE_MODELS
from held_out.third_party.sequence import SEQUENCE_MODELS
from held_out.third_party.state import STATE_MODELS
from held_out.third_party.vision import VISION_MODELS

_GROUPS = (
    LANGUAGE_MODELS,
    SEQUENCE_MODELS,
    IMAGE_MODELS,
    EXPERT_MODELS,
    STATE_MODELS,
    ENCODER_MODELS,
    VISION_MODELS,
    DIFFUSION_MODELS,
)
MODELS: dict[str, Model] = {one.name: one for group in _GROUPS for one in group}


def find_installed(models: Mapping[str, Model] = MODELS) -> list[str]:
    """The models whose library is here; a word about the others."""
    for name, model in models.items():
        if not model.is_installed:
            print(f"{name} is left out: pip install {model.library}", file=sys.stderr)
    return [name for name, model in models.items() if model.is_installed]
