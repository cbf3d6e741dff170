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
  parameters        of cells; `buffers` are parameters there; `parameters_of`: of one class only
  parameters_in     of the layers of `nn`, those that PyTorch calls otherwise
  children          of the cells of one class: their names; "": PyTorch has no such level
  results           which result of PyTorch's each result is, where it returns others or in another order; null: none
  values            of arguments, that PyTorch spells otherwise
  silent            arguments that change nothing, or nothing with these values
  backward          arguments of functions, by PyTorch's names, that change gradients alone
  defaults          that differ from PyTorch's, so that the same call without this argument computes something else

Arguments have PyTorch's names too (their order and names are in signature.json, see `signature`):

    common_argument(call, "input.1")        "kwargs.dim", for torch.softmax(x, -1) and for ops.softmax(x, axis=-1)
    common_value(call, "kwargs.momentum", 0.9)    0.1, where MindSpore keeps what PyTorch replaces
    default_value(call, "dim")              what the function takes when it is not given
    name_buffer(call, "input.1")            "running_mean", for torch.nn.functional.batch_norm(x, mean, variance)
    is_of_backward(call, "input.2")         an argument that only gradients depend on
    is_silent("kwargs.inplace", True)       an argument that changes nothing; `is_made_with`: that no record can have
    differing_defaults(call)                what to look at when two calls without arguments differ
"""

from __future__ import annotations

import json
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import Any, Protocol

from tensorprobe.model.name import is_index
from tensorprobe.word.signature import MINDSPORE, MISSING, PRIMITIVE, Argument, Signature, find_signature

_WORD_BEGIN = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DIMENSIONS = re.compile(r"(?<=\d)D(?=[A-Z]|$)")
_VARIANT = re.compile(r"(?:Ext|View|V\d)$")  # another kernel, or a view: the same operation
_LONGEST_VARIANT = len("View")
_SLOT_PARTS = ("parameters", "buffers")
_DIGITS = 12  # 1 - 0.9 is 0.1
ASIDE = "aside"
"""In the name of a result that PyTorch's function does not return."""


class Spoken(Protocol):
    """A call as far as words go: those of its framework for what was called."""

    framework: str
    kind: Any
    prefix: str
    op: str
    direction: str


@cache
def vocabulary() -> dict[str, Any]:
    """The whole table."""
    content: dict[str, Any] = json.loads(files("tensorprobe.word").joinpath("vocabulary.json").read_text("utf-8"))
    return content


def is_across_frameworks(reference: str, candidate: str) -> bool:
    """Are these two frameworks that have other words, and other code between the calls of a program?

    >>> is_across_frameworks("pytorch", "mindspore"), is_across_frameworks("pytorch", "mindtorch")
    (True, False)
    """
    return (reference == MINDSPORE) != (candidate == MINDSPORE) and bool(reference and candidate)


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


def common_argument(call: Spoken, slot: str, is_whole: bool = False) -> str:
    """An argument by PyTorch's keyword, however it was given; a result by its place among PyTorch's.

    `is_whole`: it is a whole sequence in one slot, such as a torch.Size. In a backward call these are gradients: those
    of the arguments come out, those of the results go in.
    """
    if call.kind != "api":
        return slot
    name = _common_argument(call.framework, call.prefix, call.op, call.direction == "backward", slot)
    is_first = is_whole and slot.count(".") == 1 and slot.startswith("input.") and name.endswith(".0")
    return name.removesuffix(".0") if is_first else name


def common_name_of(op: str, slot: str) -> str:
    """The same, of an operation of PyTorch that is known by its word alone."""
    return _common_argument("pytorch", "", op, False, slot)


def common_value(call: Spoken, slot: str, value: Any) -> Any:
    """What PyTorch would have been given: 0.1 for a `keep_prob` of 0.9."""
    argument = _find_argument(call, slot)
    if call.framework != MINDSPORE or argument is None:
        return value
    return _common_value(argument, value)


def default_value(call: Spoken, name: str) -> Any:
    """What an argument, by PyTorch's name, is when it is not given, as PyTorch would spell it; or `MISSING`."""
    signature = _signature(call)
    argument = None if signature is None else signature.by_keyword(name)
    if argument is None or argument.default is MISSING:
        return MISSING
    return _common_value(argument, argument.default) if call.framework == MINDSPORE else argument.default


def name_buffer(call: Spoken, slot: str) -> str | None:
    """The name of an argument that is a buffer of the layer that makes the call, such as a running mean; else None."""
    part, _, name = common_argument(call, slot).partition(".")
    is_buffer = part == "kwargs" and name in vocabulary()[MINDSPORE]["buffers"].values()
    return name if is_buffer else None


def is_dimension(slot: str) -> bool:
    """Does an argument, by its common name, say along which dimension?"""
    part, _, rest = slot.partition(".")
    return part == "kwargs" and rest.partition(".")[0] in vocabulary()["dimensions"]


def is_silent(slot: str, value: Any) -> bool:
    """Does an argument, by its common name, change nothing?"""
    name = slot.removeprefix("kwargs.").partition(".")[0]
    values = vocabulary()["silent"].get(name)
    return values is not None and (values == "any" or value in values)


def is_of_backward(call: Spoken, slot: str) -> bool:
    """Does an argument change nothing but gradients?"""
    names = vocabulary()["backward"].get(common_op(call.framework, call.kind, call.prefix, call.op), ())
    return common_argument(call, slot).removeprefix("kwargs.") in names


def is_made_with(call: Spoken, slot: str) -> bool:
    """May a primitive have been made with this argument, which it is not called with? No record has it then."""
    if call.framework != MINDSPORE or call.prefix != PRIMITIVE:
        return False
    signature = _signature(call)
    return signature is None or signature.by_keyword(slot.removeprefix("kwargs.").partition(".")[0]) is None


def differing_defaults(call: Spoken) -> dict[str, Any]:
    """Of MindSpore's functions and layers, by argument: both defaults, and what they mean. Empty for PyTorch's."""
    if call.framework != MINDSPORE:
        return {}
    found = vocabulary()[MINDSPORE]["defaults"]
    owners = ("nn", "mint.nn") if call.kind == "module" else (call.prefix,)
    name = _own_name(call.prefix, call.op)
    return {key: value for owner in owners for key, value in found.get(owner, {}).get(name, {}).items()}


def _signature(call: Spoken) -> Signature | None:
    return _find_signature(call.framework, call.prefix, call.op) if call.kind == "api" else None


def _find_signature(framework: str, prefix: str, op: str) -> Signature | None:
    word = common_op(framework, "api", prefix, op)
    plain = word if word.startswith("__") else word.rstrip("_")
    return find_signature(framework, prefix, _own_name(prefix, op), plain)


def _own_name(prefix: str, op: str) -> str:
    """A primitive is known by its class, whatever its cell calls it."""
    return op.rpartition(".")[2] if prefix == PRIMITIVE else op


@lru_cache(maxsize=65536)
def _common_argument(framework: str, prefix: str, op: str, is_backward: bool, slot: str) -> str:
    part, _, rest = slot.partition(".")
    given, returned = ("output", "input") if is_backward else ("input", "output")
    if part == returned:
        return _common_result(framework, prefix, op, slot)
    signature = _find_signature(framework, prefix, op) if part in (given, "kwargs") and rest else None
    return slot if signature is None else _name_argument(signature, slot, part == "kwargs", rest)


def _name_argument(signature: Signature, slot: str, is_keyword: bool, rest: str) -> str:
    first, dot, below = rest.partition(".")
    argument = _find(signature, is_keyword, first)
    if argument is None:
        return slot
    name = f"kwargs.{argument.name}"
    if argument.is_rest and not is_keyword and not dot:  # one of the rest: permute(2, 0, 1)
        return f"{name}.{int(first) - signature.place(argument)}"
    return f"{name}{dot}{below}"


def _find_argument(call: Spoken, slot: str) -> Argument | None:
    part, _, rest = slot.partition(".")
    signature = _signature(call)
    if signature is None or part not in ("input", "kwargs"):
        return None
    return _find(signature, part == "kwargs", rest.partition(".")[0])


def _find(signature: Signature, is_keyword: bool, place: str) -> Argument | None:
    if is_keyword:
        return signature.by_keyword(place)
    return signature.by_position(int(place)) if is_index(place) else None  # a damaged dump has anything here


def _common_value(argument: Argument, value: Any) -> Any:
    if argument.is_complement and isinstance(value, (int, float)):
        return round(1 - value, _DIGITS)
    for own, common in vocabulary()[MINDSPORE]["values"].get(argument.name, ()):
        if type(own) is type(value) and own == value:
            return common
    return None if value == () else value


def _common_result(framework: str, prefix: str, op: str, slot: str) -> str:
    results = vocabulary()[MINDSPORE]["results"] if framework == MINDSPORE else {}
    places = results.get(prefix, {}).get(_own_name(prefix, op))
    part, _, rest = slot.partition(".")
    first, dot, below = rest.partition(".")
    if places is None or not is_index(first):
        return slot
    place = places[int(first)] if int(first) < len(places) else None
    return f"{part}.{ASIDE}.{rest}" if place is None else f"{part}.{place}{dot}{below}"


def _word_of_function(op: str, own: dict[str, str]) -> str:
    functions = vocabulary()[MINDSPORE]["functions"]
    if op in own:
        return own[op]
    plain = op.removesuffix("_ext") or op
    in_place = plain if plain.endswith("__") else plain.removesuffix("_")
    return str(functions.get(in_place, plain))


def _word_of_primitive(name: str) -> str:
    primitives = vocabulary()[MINDSPORE]["primitives"]
    for spelling in (name, _without_variants(name), _without_variants(name.removeprefix("Inplace"))):
        if spelling in primitives:
            return str(primitives[spelling])
    plain = _DIMENSIONS.sub("d", _without_variants(name.removeprefix("Inplace")) or name)
    return _word_of_function(_WORD_BEGIN.sub("_", plain).lower(), {})


def _without_variants(name: str) -> str:
    """From the end on, piece by piece: a pattern of many of them would be tried at every place of a long name."""
    end = len(name)
    while found := _VARIANT.search(name, max(end - _LONGEST_VARIANT, 0), end):
        end = found.start()
    return name[:end]
