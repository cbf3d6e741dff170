"""What is known of operations by name; the names are in operation.json.

steps        a small change of an input may change the result by a whole one
kinks        or the gradient: at 0 that of relu is one or nothing
random       draws from a generator; also the modules that do nothing else
composite    one call, many operations one after the other
exponential  its relative error is the absolute error of what goes in
contraction  sums of products
sum, mean    sums of one input; `mean` divides them
lookup       its first argument is a table, as a rule a parameter
addition     terms that may cancel, element by element
sized        an argument says how large the result is
commutative  its two operands may be in either order
data         makes a tensor of what the program has read or computed without the framework
passing      may return just what it was given: a cast to the same dtype, a view, a dropout that drops nothing
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files

_ARITHMETIC = ("add", "sub", "mul", "truediv", "matmul", "pow", "floordiv", "mod")


@cache
def _tables() -> dict[str, frozenset[str]]:
    content = json.loads(files("tensorprobe.word").joinpath("operation.json").read_text("utf-8"))
    return {kind: frozenset(names) for kind, names in content.items()}


@cache
def plain_op(op: str) -> str:
    """What the tables know an operation by, for its dunder, in-place and `torch.ops` spellings.

    >>> plain_op("__iadd__"), plain_op("aten.add.Tensor"), plain_op("add_"), plain_op("linear")
    ('add', 'add', 'add', 'linear')
    """
    if op.startswith("__") and op.endswith("__") and len(op) > 4:
        op = op[2:-2]
        if op[:1] in ("i", "r") and op[1:] in _ARITHMETIC:
            op = op[1:]
    if op.startswith("aten."):
        op = op.split(".")[1]
    return op.rstrip("_") or op


@cache
def is_a(op: str, kind: str) -> bool:
    """Is this operation, or this class of modules, of this kind?"""
    names = _tables()[kind]
    return op in names or plain_op(op) in names
