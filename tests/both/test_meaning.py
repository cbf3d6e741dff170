"""The meaning of every function of MindSpore that has one, held against MindSpore itself: results and gradients.

What MindSpore cannot compute on a CPU is listed, and that it cannot is asked, so that the list stays true. The same for
the few gradients that MindSpore itself gets wrong there: they are held against its own results, moved a little.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tensorprobe.replay.meaning.mindspore import TABLE, find_entry
from tensorprobe.replay.meaning.mindspore.call import drop_repeated
from tests.both.meaning_case import ELEMENTWISE, LAYOUT, REDUCTION, Case
from tests.both.meaning_layer_case import LAYER, LOSS, NAMED
from tests.both.meaning_part_case import PARTS
from tests.both.meaning_run import (
    find_mindspore,
    is_close,
    numeric_gradients,
    run_meaning,
    run_mindspore,
    run_torch_twin,
)
from tests.both.vocabulary_run import NO_KERNEL

CASES = {**ELEMENTWISE, **LAYOUT, **REDUCTION, **LAYER, **LOSS, **NAMED, **PARTS}
NOT_ON_CPU = {
    "Functional": ("einsum", "layer_norm", "roll"),
    "Mint": (
        *("acos", "acosh", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "arange", "argmax", "argmin", "asin"),
        *("asinh", "atan", "atan2", "baddbmm", "bitwise_or", "bitwise_xor", "cumsum", "diag", "dot", "einsum", "exp2"),
        *("frac", "full", "full_like", "index_select", "inverse", "linspace", "log10", "log2", "logaddexp"),
        *("logaddexp2", "logsumexp", "mm", "mv", "ones_like", "outer", "repeat_interleave", "roll", "scatter_add"),
        *("stack", "std", "topk", "trace", "tril", "var", "zeros_like"),
    ),
    "MintFunctional": (
        *("adaptive_avg_pool1d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv1d", "conv2d", "conv3d", "fold"),
        *("conv_transpose2d", "interpolate", "kl_div", "max_pool2d", "unfold"),
        *("adaptive_avg_pool2d", "cross_entropy", "dropout", "elu", "embedding", "gelu", "hardtanh", "l1_loss"),
        *("layer_norm", "leaky_relu", "log_softmax", "logsigmoid", "mish", "mse_loss", "normalize", "one_hot", "pad"),
        *("relu6", "selu", "threshold"),
    ),
    "Tensor": ("addcdiv", "clone", "repeat", "roll"),
    "Primitive": (),
}
"""No kernel of these on a CPU, in MindSpore 2.10."""
PARTLY_ON_CPU = {("Mint", "floor_divide"), ("Tensor", "floor_divide"), ("MintFunctional", "dropout")}
"""With one form of their arguments only."""
NO_DERIVATIVE = {
    *(("Functional", name) for name in ("channel_shuffle", "cholesky", "cummax", "cummin", "hinge_embedding_loss")),
    *(("Mint", name) for name in ("cummax", "select", "unbind")),
    ("MintFunctional", "softplus"),
    *(("Primitive", name) for name in ("Rint", "SelectExtView")),
    *(("Tensor", name) for name in ("cummax", "cummin", "select")),
}
"""MindSpore cannot differentiate these on a CPU."""
WRONG_IN_MINDSPORE = {
    ("Functional", "selu"): (0,),
    ("Primitive", "SeLU"): (0,),
    ("Primitive", "StridedSlice"): (1,),
    ("Functional", "strided_slice"): (1,),
    ("Primitive", "SliceExt"): (0,),
    ("Primitive", "L2Normalize"): (2,),
    ("Primitive", "MatrixInverse"): (1,),
}
"""Cases whose gradient MindSpore 2.10 gets wrong on a CPU: of negative elements, of slices with a mask or by their
kernel, of norms below epsilon, of the inverse of what is turned over."""
LOW_PRECISION = {"bfloat16": 2.0**-7 / np.finfo(np.float32).eps}
"""So many epsilons of float32 are one rounding."""


def cases_of(prefix: str, name: str) -> list[Case]:
    return CASES.get(f"{prefix}.{name}") or CASES.get(name) or []


def test_every_entry_has_a_case() -> None:
    assert [key for key in TABLE if not cases_of(*key)] == []


def test_every_case_belongs_to_an_entry() -> None:
    known = {name for _, name in TABLE} | {f"{prefix}.{name}" for prefix, name in TABLE}
    assert [name for name in CASES if name not in known] == []


@pytest.mark.parametrize(("prefix", "name"), sorted(TABLE), ids=lambda text: text)
def test_a_meaning_computes_what_mindspore_computes_forward_and_backward(prefix: str, name: str) -> None:
    for number, case in enumerate(cases_of(prefix, name)):
        assert find_mindspore(prefix, name, case.settings) is not None, "MindSpore has no such function"
        if name in NOT_ON_CPU[prefix] or (prefix, name) in PARTLY_ON_CPU:
            try:
                recorded = run_mindspore(prefix, name, case)
            except (RuntimeError, NotImplementedError) as error:
                assert NO_KERNEL.search(str(error)), error
                if name != "dropout":  # which draws
                    check_against_torch(prefix, name, case)
                continue
            assert (prefix, name) in PARTLY_ON_CPU, "it has a kernel on a CPU: take it out of the list"
        else:
            recorded = run_mindspore(prefix, name, case)
        meaning = run_meaning(prefix, name, case, recorded)
        epsilons = LOW_PRECISION.get(name, 30)
        assert [one.shape for one in recorded.results] == [one.shape for one in meaning.results]
        for one, other in zip(recorded.results, meaning.results, strict=True):
            assert is_close(one, other, epsilons), f"case {number}: {one} and {other}"
        if (prefix, name) in NO_DERIVATIVE:
            assert recorded.gradients is None
            continue
        wanted = recorded.gradients or []
        if number in WRONG_IN_MINDSPORE.get((prefix, name), ()):
            assert not all(map(is_close, wanted, meaning.gradients or []))
            moved = numeric_gradients(prefix, name, case)
            assert all(
                np.allclose(*pair, rtol=0.05, atol=0.05) for pair in zip(moved, meaning.gradients or [], strict=True)
            )
            continue
        found = meaning.gradients or [np.zeros(one.shape) for one in wanted]
        for one, other in zip(wanted, found, strict=True):
            assert is_close(one, other, epsilons), f"case {number}, gradient: {one} and {other}"


def check_against_torch(prefix: str, name: str, case: Case) -> None:
    """What `mint` has under a name of torch's is what torch has; MindSpore's manual says so."""
    function = next((found for owner in (F, torch, torch.Tensor) if (found := getattr(owner, name, None))), None)
    assert function is not None
    found, wanted = run_torch_twin(prefix, name, function, case)
    assert [one.shape for one in found] == [one.shape for one in wanted]
    assert all(map(np.array_equal, found, wanted))


def test_a_wrong_meaning_would_be_seen() -> None:
    """Another epsilon in one LayerNorm, another padding: both are far outside of what is allowed."""
    case = cases_of("Primitive", "LayerNorm")[1]
    other = Case(case.args, case.kwargs, {**case.settings, "epsilon": 1.01e-2})
    recorded = run_mindspore("Primitive", "LayerNorm", case)
    assert is_close(recorded.results[0], run_meaning("Primitive", "LayerNorm", case, recorded).results[0])
    assert not is_close(recorded.results[0], run_meaning("Primitive", "LayerNorm", other, recorded).results[0])


@pytest.mark.parametrize(
    ("name", "own", "settings"),
    [
        ("LayerNorm", 3, {"begin_norm_axis": -1, "begin_params_axis": -1, "epsilon": 1e-3}),
        ("BatchNorm", 5, {"is_training": True, "epsilon": 1e-5, "momentum": 0.1, "data_format": "NCHW"}),
        ("Gather", 3, {"batch_dims": 0}),
        ("ReduceMean", 2, {"keepdim": True}),
        ("AvgPool", 1, {"kernel_size": 2, "strides": 2, "pad_mode": "VALID", "data_format": "NCHW"}),
        ("BiasAdd", 2, {"data_format": "NCHW"}),
    ],
)
def test_what_a_kernel_was_given_behind_its_arguments_is_known_by_name(
    name: str, own: int, settings: dict[str, object]
) -> None:
    entry = find_entry("Primitive", name)
    assert entry is not None
    function = partial(entry.function, None) if entry.needs_context else entry.function
    args = tuple(f"argument {place}" for place in range(own))
    for given in ((*args, *settings.values()), args):
        assert drop_repeated(function, given, settings) == args
