"""One operation in both frameworks, with the same arguments, given by PyTorch's names."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
import torch
import torch.nn.functional as F

from tensorprobe.run.call import Call
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.signature import MISSING, Signature, find_signature
from tensorprobe.word.vocabulary import vocabulary

NO_KERNEL = re.compile(
    r"unregistered|Unsupported op|only supports? Ascend|Not found op|Create kernelmod|not supported on this device"
    r"|Not implement|should not come here|Select CPU operator|has no attribute 'triangular_solve'|only support"
)
"""What MindSpore says of an operation that it cannot run on a CPU."""

_SPREAD = ("einsum", "block_diag", "cartesian_prod", "meshgrid", "atleast_1d")  # tensors one by one


def spoken(framework: str, prefix: str, op: str) -> Call:
    return Call(op, 0, "api", prefix, op, 0, "forward", "", None, None, (), framework=framework)


def signature_of(framework: str, prefix: str, op: str) -> Signature | None:
    own = op.rpartition(".")[2] if prefix == "Primitive" else op
    return find_signature(framework, prefix, own, word_of(spoken(framework, prefix, op)).rstrip("_"))


def torch_function(word: str) -> Callable[..., Any] | None:
    """Where PyTorch has an operation: as a function, else as a method."""
    for owner in (F, torch, torch.Tensor, torch.linalg):
        found: Any = owner
        for part in word.split("."):
            found = getattr(found, part, None)
        if callable(found):
            return found
    return torch.Tensor.copy_ if word == "copy" else None


def common_case(case: dict[str, Any], signature: Signature | None, theirs: Signature | None) -> dict[str, Any]:
    """The arguments that MindSpore's function takes, and those that PyTorch's cannot do without."""
    if signature is None or theirs is None:
        return case
    known = {argument.name for argument in signature.arguments}
    needed = {argument.name for argument in theirs.arguments if argument.default is MISSING}
    return {name: value for name, value in case.items() if name in known | needed}


def run_torch(word: str, case: dict[str, Any]) -> list[np.ndarray]:
    function = torch_function(word)
    assert function is not None, f"PyTorch has no {word}"
    values = {name: _convert(value, _torch_tensor) for name, value in case.items()}
    signature = find_signature("pytorch", "Torch", word, word)
    if isinstance(case.get("index"), tuple):
        values["index"] = torch.tensor(case["index"])
    if signature is None:
        return arrays(function(*_spread(word, list(values.values()))))
    placed, named = [], {}
    for argument in signature.arguments:
        if argument.name not in values:
            continue
        is_next = len(placed) == signature.place(argument) and not argument.is_keyword_only
        if is_next and argument.own_name != "unbiased" and not named:
            placed.append(values[argument.name])
        else:
            named[argument.name if argument.own_name == "unbiased" else argument.own_name] = values[argument.name]
    return arrays(function(*_spread(word, placed), **named))


def run_mindspore(
    function: Callable[..., Any],
    signature: Signature | None,
    word: str,
    case: dict[str, Any],
    by_keyword: bool,
    is_own: bool = False,
) -> list[np.ndarray]:
    """`is_own`: the signature is its own, not that of PyTorch's function."""
    values = {name: _convert(value, ms.Tensor) for name, value in case.items()}
    if signature is None:
        return arrays(function(*_spread(word, list(values.values()))))
    placed: list[Any] = []
    named: dict[str, Any] = {}
    for place, argument in enumerate(signature.arguments):
        if argument.name not in values:
            continue
        value = values[argument.name]
        is_next = (
            len(placed) == place
            and not argument.is_keyword_only
            and not (by_keyword and place and not argument.is_rest)
        )
        if is_next and argument.is_rest and not by_keyword and is_own:
            placed.extend(value)
        elif is_next:
            placed.append(value)
        else:
            named[argument.own_name] = value
    return arrays(function(*_spread(word, placed), **named))


def _torch_tensor(array: np.ndarray) -> torch.Tensor:
    """PyTorch takes 64 bits for an index, where MindSpore often takes 32."""
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.int32 else array.copy())


def arrays(result: Any) -> list[np.ndarray]:
    """All results, as numbers that numpy can compare."""
    if isinstance(result, (tuple, list)):
        return [array for item in result for array in arrays(item)]
    if isinstance(result, torch.Tensor):
        result = result.detach().resolve_conj()
        return [(result.float() if result.dtype is torch.bfloat16 else result).numpy()]
    if isinstance(result, ms.Tensor):
        return [result.float().asnumpy() if result.dtype == ms.bfloat16 else result.asnumpy()]
    return [np.asarray(result)]


def reorder(prefix: str, op: str, results: list[np.ndarray]) -> list[np.ndarray]:
    """MindSpore's results in the order of PyTorch's, without those that PyTorch does not return."""
    places = vocabulary()["mindspore"]["results"].get(prefix, {}).get(op)
    if places is None:
        return results
    found = {place: result for place, result in zip(places, results, strict=False) if place is not None}
    return [found[place] for place in sorted(found)]


def _convert(value: Any, make: Callable[[np.ndarray], Any]) -> Any:
    if isinstance(value, np.ndarray):
        return make(value)
    return [_convert(item, make) for item in value] if isinstance(value, list) else value


def _spread(word: str, values: list[Any]) -> list[Any]:
    if word in _SPREAD and values and isinstance(values[-1], list):
        return [*values[:-1], *values[-1]]
    return values
