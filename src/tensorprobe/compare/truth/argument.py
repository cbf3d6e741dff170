"""Arguments that are no tensors, of two calls of the same function, in the words of PyTorch.

`axis=2` is `dim=-1` of three dimensions, what is not given is the default, and a size says what the result says too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tensorprobe.replay.true_step import TrueCall, TrueStep
from tensorprobe.word.signature import MISSING
from tensorprobe.word.vocabulary import common_argument, common_value, default_value, is_dimension, is_silent

_SIZES = frozenset(("output_size", "shape", "size", "sizes"))
Side = tuple[TrueCall, TrueStep]
"""A call, and the step that it is of."""


def differing_arguments(reference: Side, candidate: Side) -> Iterator[str]:
    """Those that are not the same, in words."""
    said = _say(*reference), _say(*candidate)
    shapes = [
        [step.values[number].array.shape for number in call.outputs.values()] for call, step in (reference, candidate)
    ]
    for name in dict.fromkeys((*said[0], *said[1])):
        keyword = name.removeprefix("kwargs.").partition(".")[0]
        if keyword in _SIZES and shapes[0] == shapes[1]:
            continue
        first = _value(name, said[0], reference[0])
        second = _value(name, said[1], candidate[0])
        if first is MISSING or second is MISSING:
            given = second if first is MISSING else first
            if is_silent(name, given) or given is None or not _is_same_function(reference[0], candidate[0]):
                continue
        if first != second and not _is_dtype(first, second):
            yield f"{name.removeprefix('kwargs.')}={_show(second)} where the reference had {_show(first)}"


def _say(call: TrueCall, step: TrueStep) -> dict[str, Any]:
    ranks = [step.values[number].array.ndim for number in call.inputs.values()]
    found = {}
    for slot, value in call.arguments.items():
        name = common_argument(call, slot, isinstance(value, list))
        value = common_value(call, slot, value)
        if is_dimension(name) and ranks:
            value = _count_from_front(value, ranks[0])
        found[name] = value
    return found


def _count_from_front(value: Any, rank: int) -> Any:
    if isinstance(value, list | tuple):
        return [_count_from_front(one, rank) for one in value]
    return value + rank if isinstance(value, int) and not isinstance(value, bool) and value < 0 else value


def _value(name: str, said: dict[str, Any], call: TrueCall) -> Any:
    return said[name] if name in said else default_value(call, name.removeprefix("kwargs."))


def _is_same_function(reference: TrueCall, candidate: TrueCall) -> bool:
    """Of two functions one may take as an argument what the other was made with."""
    return (reference.framework, reference.prefix, reference.op) == (
        candidate.framework,
        candidate.prefix,
        candidate.op,
    )


def _show(value: Any) -> str:
    return "nothing" if value is MISSING else repr(value)


def _is_dtype(first: object, second: object) -> bool:
    """Another precision means the same."""
    return all(isinstance(one, str) and one.partition(".")[0] in ("torch", "mindspore") for one in (first, second))
