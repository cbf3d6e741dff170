"""The kinds of fault: those that models have places for, and those that change the program from outside."""

from __future__ import annotations

from dataclasses import dataclass

WRONG = frozenset({"source", "entered", "missing", "drift"})
"""Verdicts that name a call as the place where it went wrong."""


@dataclass(frozen=True)
class Kind:
    words: str
    direction: str = "forward"
    """Where the first wrong value is."""
    verdicts: frozenset[str] = WRONG
    """The verdicts that a user would accept, if the right call is named with them."""
    needs_place: bool = True
    """Or is the program of the candidate changed from outside?"""


KINDS: dict[str, Kind] = {
    "scale": Kind("a wrong scale, in attention and elsewhere"),
    "epsilon": Kind("a wrong epsilon in a normalisation"),
    "gelu": Kind("tanh GELU for exact GELU"),
    "gelu_by_hand": Kind("tanh GELU written out, many calls for one"),
    "swapped": Kind("swapped operands"),
    "operand": Kind("another tensor of the same shape as operand"),
    "transposed": Kind("a transposed weight"),
    "mask": Kind("a wrong mask"),
    "residual": Kind("a missing residual"),
    "dropout_state": Kind("dropout off where it should be on"),
    "dropout_share": Kind("another share of dropout"),
    "norm_state": Kind("BatchNorm in the wrong mode"),
    "head": Kind("permuted heads"),
    "slice": Kind("an off-by-one slice or shift"),
    "overflow": Kind("an integer overflow"),
    "nan": Kind("a NaN"),
    "reduction": Kind("a wrong reduction"),
    "smoothing": Kind("label smoothing in the loss"),
    "dimension": Kind("a wrong dimension of softmax or mean"),
    "activation": Kind("another activation function"),
    "bias": Kind("a missing bias"),
    "precision": Kind("one operation in bfloat16 and back"),
    "stale": Kind("a buffer that is not updated, or another one used"),
    "gradient_hook": Kind("a gradient scaled by a hook", direction="backward"),
    "gradient_function": Kind("a gradient scaled by an inserted autograd function", direction="backward"),
    "gradient_formula": Kind("a wrong backward of a custom autograd function", direction="backward"),
    "detach": Kind("a detached branch", direction="backward"),
    "data": Kind("other data", verdicts=frozenset({"entered"}), needs_place=False),
    "start": Kind(
        "a parameter that differs from the start",
        verdicts=frozenset({"unequal start"}),
        needs_place=False,
    ),
    "seed": Kind("another seed for dropout", verdicts=frozenset({"random", "source"}), needs_place=False),
    "untied": Kind("weights that are not tied any more", direction="backward", needs_place=False),
}

REWRITES: dict[str, str] = {
    "split_linear": "each linear as the sum of two halves",
    "unfused": "fused attention written out",
}
"""What a program may write differently: planted at all places at once, and no fault."""
