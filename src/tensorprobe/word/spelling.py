"""One spelling for what two programs write differently: operators and methods, in-place calls, wrapped modules.

The words themselves are in vocabulary.json; here is what Python and PyTorch make of one word: `__iadd__`, `add_`.
"""

from __future__ import annotations

from functools import lru_cache

from tensorprobe.word.layer_word import word_of, word_of_name
from tensorprobe.word.vocabulary import Spoken, vocabulary

WRAPPER_SEGMENTS: frozenset[str] = frozenset(vocabulary()["wrapper_segments"])
WRAPPER_CLASSES: frozenset[str] = frozenset(vocabulary()["wrapper_classes"])

_REFLECTED_SAME = frozenset({"add", "mul", "and", "or", "xor"})  # the order of their operands does not matter
_OTHER_WORDS: dict[str, str] = vocabulary()["words"]


def canonical_op(call: Spoken) -> str:
    """What was called, whatever the spelling: `Tensor.__iadd__`, `Torch.add` and `Ops.aten.add.Tensor` are `add`.

    Of a module, its class. Kinds never mix: a module is no API.
    """
    if call.kind == "api":
        return _canonical_api("aten." in call.op and call.prefix == "Ops", word_of(call))
    return f"{call.kind}:{word_of(call)}"


@lru_cache(maxsize=4096)
def common_word(framework: str, prefix: str, op: str) -> str:
    """The same for an API call that is known by its name alone."""
    return _canonical_api("aten." in op and prefix == "Ops", word_of_name(framework, "api", prefix, op))


@lru_cache(maxsize=4096)
def _canonical_api(is_aten: bool, op: str) -> str:
    if is_aten:
        op = op.split(".")[op.split(".").index("aten") + 1].removeprefix("_")
    if op.startswith("__") and op.endswith("__") and len(op) > 4:
        op = _canonical_dunder(op[2:-2])
    elif not op.endswith("__"):
        op = op.removesuffix("_") or op
    return _OTHER_WORDS.get(op, op)


def _canonical_dunder(word: str) -> str:
    if word[1:] in _PLAIN_OPERATORS and word[0] == "i":
        return word[1:]
    if word[1:] in _REFLECTED_SAME and word[0] == "r":
        return word[1:]
    return word


_PLAIN_OPERATORS = frozenset(
    {
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "matmul",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    }
)
