"""How a recorded call of MindSpore is made in torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from tensorprobe.capture.torch.function import UnknownFunctionError
from tensorprobe.replay.meaning.mindspore import PRIMITIVE, common_keywords, find_entry
from tensorprobe.replay.meaning.torch import Context
from tensorprobe.replay.program import Operation
from tensorprobe.replay.recorded import MissingContentError, RecordedTensors
from tensorprobe.run.leaf import iter_leaves

GIVEN_BACK = "given_back"
"""The field in which a dropout has the gradients that came to its result and went on from it."""


def find_mindspore_function(operation: Operation, context: Context) -> Callable[..., Any]:
    """What the call means. UnknownFunctionError where that is not known."""
    entry = find_entry(operation.prefix, operation.op)
    if entry is None:
        raise UnknownFunctionError(f"{operation.prefix}.{operation.op} has no meaning in torch that is known here")
    function = partial(entry.function, context) if entry.needs_context else entry.function

    def call(*args: Any, **kwargs: Any) -> Any:
        named = common_keywords(kwargs)
        if operation.prefix == PRIMITIVE and named:
            args = drop_repeated(function, args, named)
        output = function(*args, **named)
        output = tuple(output) if isinstance(output, list) else output
        for leaf, tensor in zip(operation.outputs, output if isinstance(output, tuple) else (output,), strict=False):
            if leaf.is_floating != (tensor.is_floating_point() or tensor.is_complex()):
                raise UnknownFunctionError(f"its meaning gives {tensor.dtype} where {leaf.dtype} was recorded")
        return output

    return call


def drop_repeated(function: Callable[..., Any], args: Sequence[Any], named: Mapping[str, Any]) -> tuple[Any, ...]:
    """The arguments without those that a primitive was made with: a kernel is seen with them behind its own, also where
    they are known by name. There a text has become a number."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # one of torch's own, which has no settings
        return tuple(args)
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return tuple(args)
    places = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD]
    own = next((place for place, name in enumerate(places) if name in named), len(places))
    return tuple(args[:own])


def is_mindspore_random(operation: Operation) -> bool:
    """Does it draw numbers, and is no dropout, which keeps its mask? A layer does if a call inside it does."""
    if operation.is_layer:
        return any(map(is_mindspore_random, operation.children))
    return "generator" in operation.fields and find_entry(operation.prefix, operation.op) is None


def find_mask_by_gradient(operation: Operation, recorded: RecordedTensors) -> torch.Tensor | None:
    """What a dropout kept. Where its input is zero its result does not tell, and the gradient that it gave back does.
    None where no gradients are recorded."""
    leaves = list(iter_leaves(operation.fields.get(GIVEN_BACK), GIVEN_BACK))
    if len(leaves) != 2:
        return None
    try:
        given, result = (recorded.load(next(iter(leaf))) for leaf in (operation.inputs, operation.outputs))
        came, went = (recorded.load(leaf) for leaf in leaves)
    except MissingContentError:
        return None
    return (result != 0) | ((given == 0) & ((went != 0) | (came == 0)))
