"""One word for what the frameworks call differently; the words are in vocabulary.json, and the common one is PyTorch's.

    ops.dense, mint.nn.functional.linear, Primitive.matmul.Dense   linear
    Cell.fc.Dense                                                   Linear
    parameters.gamma, parameters.moving_mean                        parameters.weight, buffers.running_mean

words             one operation, several words, in either framework
wrapper_segments  parts of a module path that a wrapper puts in front of the module it holds
wrapper_classes   and the classes of such wrappers
mindspore         what MindSpore says otherwise
  functions         of `ops`, `mint` and the methods of a tensor
  functions_of      the same, where a word of PyTorch means another thing under one prefix only
  primitives        classes that lower case and underscores do not make a function of
  cells             classes
  parameters        of cells; `buffers` are parameters there
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any

MINDSPORE = "mindspore"
_WORD_BEGIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DIMENSIONS = re.compile(r"(?<=\d)D(?=[A-Z]|$)")
_VARIANT = re.compile(r"(?:Ext|View|V\d)+$")  # another kernel, or a view: the same operation
_SLOT_PARTS = ("parameters", "buffers")


@cache
def vocabulary() -> dict[str, Any]:
    """The whole table."""
    content: dict[str, Any] = json.loads(files("tensorprobe.compare").joinpath("vocabulary.json").read_text("utf-8"))
    return content


@lru_cache(maxsize=4096)
def common_op(framework: str, kind: str, prefix: str, op: str) -> str:
    """What was called, in PyTorch's words: an operation, or the class of a module.

    >>> common_op("mindspore", "api", "Primitive", "relu.ReLU"), common_op("mindspore", "module", "Cell", "Dense")
    ('relu', 'Linear')
    """
    if framework != MINDSPORE or prefix == "Jit" or kind == "saved":
        return op
    words = vocabulary()[MINDSPORE]
    if kind != "api":
        return str(words["cells"].get(op, op))
    last = op.rpartition(".")[2]
    return (
        _word_of_primitive(last) if last[:1].isupper() else _word_of_function(op, words["functions_of"].get(prefix, {}))
    )


@lru_cache(maxsize=4096)
def common_slot(framework: str, slot: str) -> str:
    """A parameter, its gradient or a buffer, in PyTorch's words.

    >>> common_slot("mindspore", "parameters.gamma"), common_slot("mindspore", "beta")
    ('parameters.weight', 'bias')
    """
    if framework != MINDSPORE:
        return slot
    words = vocabulary()[MINDSPORE]
    part, dot, name = slot.partition(".")
    if dot and part not in _SLOT_PARTS:
        return slot
    name = name if dot else part
    if name in words["buffers"]:
        return f"buffers.{words['buffers'][name]}"
    name = words["parameters"].get(name, name)
    return f"{part}.{name}" if dot else name


def _word_of_function(op: str, own: dict[str, str]) -> str:
    functions = vocabulary()[MINDSPORE]["functions"]
    if op in own:
        return own[op]
    plain = op.removesuffix("_ext") or op
    in_place = plain if plain.endswith("__") else plain.removesuffix("_")
    return str(functions.get(in_place, plain))


def _word_of_primitive(name: str) -> str:
    primitives = vocabulary()[MINDSPORE]["primitives"]
    for spelling in (name, _VARIANT.sub("", name), _VARIANT.sub("", name.removeprefix("Inplace"))):
        if spelling in primitives:
            return str(primitives[spelling])
    plain = _DIMENSIONS.sub("d", _VARIANT.sub("", name.removeprefix("Inplace")) or name)
    return _word_of_function(_WORD_BEGIN.sub("_", plain).lower(), {})
