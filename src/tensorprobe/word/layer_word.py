"""The layers of api_dump in the words of functions: `NN_LayerNorm` computes what `Functional_layer_norm` does.

layer.json has the classes of PyTorch that underscores and small letters do not make a function of.
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib.resources import files

from tensorprobe.model.name import LAYER_PREFIX
from tensorprobe.word.vocabulary import Spoken, common_op

_WORD_BEGIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@cache
def layer_functions() -> dict[str, str]:
    """The classes whose functions are called otherwise."""
    content: dict[str, str] = json.loads(files("tensorprobe.word").joinpath("layer.json").read_text("utf-8"))
    return content


def word_of(call: Spoken) -> str:
    """What was called, in the words that all frameworks share."""
    return word_of_name(call.framework, call.kind, call.prefix, call.op)


def word_of_name(framework: str, kind: str, prefix: str, op: str) -> str:
    """The same for a call that is known by its name alone."""
    return layer_word(framework, op) if prefix == LAYER_PREFIX else common_op(framework, kind, prefix, op)


@lru_cache(maxsize=1024)
def layer_word(framework: str, class_name: str) -> str:
    """What a layer computes, in the word of PyTorch's function.

    >>> layer_word("mindspore", "Dense"), layer_word("pytorch", "LayerNorm"), layer_word("pytorch", "CrossEntropyLoss")
    ('linear', 'layer_norm', 'cross_entropy')
    """
    common = common_op(framework, "module", "Cell", class_name)
    return layer_functions().get(common) or _WORD_BEGIN.sub("_", common).lower()
