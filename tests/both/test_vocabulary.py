"""Every word, argument and default of the vocabulary, asked of the two installed frameworks.

What MindSpore cannot run on a CPU is in not_on_cpu.json; that it cannot is asked too, so that the list stays true.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
import torch
from mindspore import mint, ops
from mindspore.ops import auto_generate
from mindspore.ops.operations import _inner_ops as inner_ops
from mindspore.ops.operations import array_ops, comm_ops, math_ops, nn_ops, random_ops

from tensorprobe.capture.mindspore import api_name
from tensorprobe.capture.mindspore.api_name import mindspore_owners
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.signature import MISSING, read_signature, signatures
from tensorprobe.word.vocabulary import vocabulary
from tests.both.vocabulary_case import CASES, NOT_CALLED_ALIKE, OWN_CASES, RANDOM
from tests.both.vocabulary_primitive import PRIMITIVES, PRIMITIVES_NOT_CALLED_ALIKE
from tests.both.vocabulary_run import (
    NO_KERNEL,
    arrays,
    common_case,
    reorder,
    run_mindspore,
    run_torch,
    signature_of,
    spoken,
    torch_function,
)

DUNDERS = json.loads((Path(api_name.__file__).parent / "api.json").read_text())["dunders"]
FUNCTIONS = {
    (owner.prefix, owner.path + name): getattr(owner.owner, name)
    for owner in mindspore_owners()
    for name in owner.names
    if owner.prefix != "Distributed" and not name.startswith(("coo_", "csr_", "__"))
}
WORDS = {key: word_of(spoken("mindspore", *key)).rstrip("_") for key in FUNCTIONS}
OWN_ARGUMENTS: dict[str, dict[str, Any]] = {"Functional.fill": {"type": ms.float32}}
WITHOUT_SIGN = ("svd", "qr", "linalg.qr")  # of a vector, either direction will do
NOT_RUN = {
    "addn": "PyTorch has no such function",
    "linalg.eig": "its vectors have any length and direction",
    "lu_unpack": "its pivots are counted otherwise",
    "lu_solve": "its pivots are counted otherwise",
    "max_unpool1d": "its indices come from a pooling",
    "max_unpool2d": "its indices come from a pooling",
    "max_unpool3d": "its indices come from a pooling",
    "numel": "not recorded",
    "ormqr": "its reflectors come from geqrf",
    "rms_norm": "no kernel on a CPU",
    "scaled_dot_product_attention": "no kernel on a CPU",
    "stft": "no kernel on a CPU",
    "to": "takes a dtype of its framework",
    "local_response_norm": "see Functional.lrn",
}
EXCUSED_PRIMITIVES = {name for names in PRIMITIVES_NOT_CALLED_ALIKE.values() for name in names}
PRIMITIVES_RUN = sorted({*vocabulary()["mindspore"]["primitives"], *PRIMITIVES} - EXCUSED_PRIMITIVES)
NOT_ON_CPU: dict[str, list[str]] = json.loads(Path(__file__).with_name("not_on_cpu.json").read_text())
RUN = sorted(
    key
    for key, word in WORDS.items()
    if (word in CASES or ".".join(key) in OWN_CASES) and ".".join(key) not in NOT_CALLED_ALIKE
)


@pytest.mark.parametrize(("prefix", "op"), RUN)
def test_a_function_computes_what_pytorch_computes_under_its_word(prefix: str, op: str) -> None:
    word = WORDS[prefix, op]
    signature, theirs = signature_of("mindspore", prefix, op), signature_of("pytorch", "Torch", word)
    case = common_case(OWN_CASES.get(f"{prefix}.{op}") or CASES[word], signature, theirs)
    is_own = op in signatures()["mindspore"][prefix]
    own_case = {**case, **OWN_ARGUMENTS.get(f"{prefix}.{op}", {})}
    wanted = run_torch(word, case)
    if op in NOT_ON_CPU[prefix]:
        with pytest.raises((RuntimeError, NotImplementedError, ValueError, TypeError, AttributeError), match=NO_KERNEL):
            run_mindspore(FUNCTIONS[prefix, op], signature, word, own_case, by_keyword=False, is_own=is_own)
        return
    for by_keyword in (False, True) if is_own else (False,):
        results = run_mindspore(FUNCTIONS[prefix, op], signature, word, own_case, by_keyword, is_own)
        found = reorder(prefix, op, results)
        assert_same(word, found[: len(wanted)], wanted)


def test_every_function_of_the_vocabulary_is_run_or_has_a_reason_why_not() -> None:
    words = vocabulary()["mindspore"]
    left = {key for key in FUNCTIONS if key not in RUN and WORDS[key] not in (*RANDOM, *NOT_RUN)}
    left = {(prefix, op) for prefix, op in left if f"{prefix}.{op}" not in NOT_CALLED_ALIKE}
    named = {
        *((prefix, op) for prefix, op in left if op.removesuffix("_ext") in words["functions"]),
        *((prefix, op) for prefix, op in left if op in words["functions_of"].get(prefix, {})),
        *((prefix, op) for prefix, op in left if op in signatures()["mindspore"][prefix]),
    }
    assert not named


@pytest.mark.parametrize("name", sorted(vocabulary()["mindspore"]["functions"]))
def test_a_word_for_a_function_is_one_that_mindspore_has(name: str) -> None:
    is_there = any(
        hasattr(owner, name) for owner in (ops, ops.function, ops.functional, mint, mint.nn.functional, ms.Tensor)
    )
    class_name = "".join(part.capitalize() for part in name.split("_"))
    assert is_there or find_primitive(class_name) or hasattr(auto_generate, name), name


@pytest.mark.parametrize(
    "word",
    sorted(
        {*vocabulary()["words"].values(), *vocabulary()["mindspore"]["functions"].values(), *signatures()["pytorch"]}
    ),
)
def test_a_common_word_is_one_of_pytorch(word: str) -> None:
    assert torch_function(word) or word in ("addn", "rdiv", "Tensor.where"), word


@pytest.mark.parametrize(
    ("prefix", "op"),
    [
        (prefix, op)
        for prefix in ("Functional", "Mint", "MintFunctional", "Tensor")
        for op in signatures()["mindspore"][prefix]
    ],
)
def test_the_arguments_of_a_function_have_these_names_and_defaults(prefix: str, op: str) -> None:
    """Where Python can say it; the others were called by these names above."""
    real = parameters(FUNCTIONS[prefix, op])
    arguments = read_signature(signatures()["mindspore"][prefix][op]).arguments
    if real is None:
        assert (prefix, op) in RUN
        return
    names = [*real][1:] if prefix == "Tensor" else [*real]
    own = [one.own_name for one in arguments][prefix == "Tensor" :]
    assert own == names[: len(own)]
    for argument in arguments[prefix == "Tensor" :]:
        default = real[argument.own_name].default
        assert (
            argument.default is MISSING if default is inspect.Parameter.empty else is_default(argument.default, default)
        )


@pytest.mark.parametrize("word", sorted(signatures()["pytorch"]))
def test_the_arguments_of_pytorch_have_these_names_and_defaults(word: str) -> None:
    function = torch_function(word)
    real = None if function is None else parameters(function)
    if real is None or any(one.kind is one.VAR_POSITIONAL for one in real.values()):
        assert word in CASES or word in (*RANDOM, *NOT_RUN, "Tensor.where", "conv_transpose1d", "index_copy", "put")
        return
    arguments = read_signature(signatures()["pytorch"][word]).arguments
    names = [name for name in real if name not in ("_stacklevel", "out")]
    assert [one.own_name for one in arguments] == names[: len(arguments)]
    for argument in arguments:
        default = real[argument.own_name].default
        assert (
            argument.default is MISSING if default is inspect.Parameter.empty else is_default(argument.default, default)
        )


OPERANDS = {"__getitem__": 1, "__rmod__": 20, "__round__": None, "__pow__": 2, "__rpow__": 2}


@pytest.mark.parametrize("name", sorted(name for name in dir(ms.Tensor) if name in DUNDERS))
def test_an_operator_computes_the_same(name: str) -> None:
    """Also in place, and with its operands the other way round."""
    left, right = np.array([[7, 5], [3, 9]]), np.array([[2, 2], [2, 4]])
    if name == "__invert__":  # of integers MindSpore's is a logical not
        left = left > 4
    if name in ("__matmul__", "__rmatmul__", "__truediv__", "__rtruediv__", "__itruediv__"):
        left, right = left.astype(np.float32), right.astype(np.float32)
    other: Any = OPERANDS.get(name, right)
    unary = name in ("__abs__", "__invert__", "__neg__", "__pos__", "__round__")
    if name == "__setitem__":
        first, second = ms.Tensor(left), torch.from_numpy(left.copy())
        first[0], second[0] = 1, 1
    elif name == "__round__":
        first, second = ms.Tensor([1.5, 2.5]).__round__(), torch.tensor([1.5, 2.5]).round()
    else:
        first = getattr(ms.Tensor(left), name)(*() if unary else (ms.Tensor(other) if other is right else other,))
        second = getattr(torch.from_numpy(left.copy()), name)(
            *() if unary else (torch.from_numpy(right) if other is right else other,)
        )
    assert_same(name, arrays(first), arrays(second))


def parameters(function: Any) -> Any:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return None


def is_default(listed: Any, real: Any) -> bool:
    return listed == real or listed == str(real).lower()


@pytest.mark.parametrize("name", PRIMITIVES_RUN)
def test_a_primitive_computes_what_pytorch_computes_under_its_word(name: str) -> None:
    made_with, case = PRIMITIVES.get(name, ({}, None))
    word = word_of(spoken("mindspore", "Primitive", name))
    signature, case = signature_of("mindspore", "Primitive", name), case or CASES[word]
    given = case if signature is None else {one.name: case[one.name] for one in signature.arguments if one.name in case}
    primitive = find_primitive(name)
    assert primitive is not None
    wanted = run_torch(word, case)
    found = reorder("Primitive", name, run_mindspore(primitive(**made_with), None, word, given, by_keyword=False))
    assert_same(word, found[: len(wanted)], wanted)


@pytest.mark.parametrize("name", [name for names in PRIMITIVES_NOT_CALLED_ALIKE.values() for name in names])
def test_a_primitive_that_is_not_run_is_there(name: str) -> None:
    assert any(find_primitive(name + ending) for ending in ("", "Ext", "View", "ExtView"))


def test_every_primitive_of_the_vocabulary_is_run_or_has_a_reason_why_not() -> None:
    words = vocabulary()["mindspore"]
    named = {*words["primitives"], *words["results"]["Primitive"], *signatures()["mindspore"]["Primitive"]}
    excused = {name for names in PRIMITIVES_NOT_CALLED_ALIKE.values() for name in names}
    assert not named - excused - set(PRIMITIVES_RUN)


def find_primitive(name: str) -> Any:
    owners = (ops, auto_generate, array_ops, comm_ops, math_ops, nn_ops, random_ops, inner_ops)
    return next((found for owner in owners if isinstance(found := getattr(owner, name, None), type)), None)


def assert_same(word: str, found: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert [array.shape for array in found] == [array.shape for array in wanted]
    for one, other in zip(found, wanted, strict=True):
        kind = complex if other.dtype.kind == "c" else float
        if word in WITHOUT_SIGN:
            one, other = abs(one), abs(other)
        np.testing.assert_allclose(one.astype(kind), other.astype(kind), rtol=1e-3, atol=1e-4)
