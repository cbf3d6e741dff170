"""In which words the rule of a pair is given."""

from __future__ import annotations

from functools import lru_cache

from tensorprobe.run.call import Call
from tensorprobe.word.layer_word import word_of
from tensorprobe.word.spelling import WRAPPER_SEGMENTS, canonical_op

SAME_NAME, WRAPPER, SPELLING, MODULE_TREE, SEQUENCE = "same name", "wrapper", "spelling", "module tree", "sequence"
GROUP, MAPPING, TRUTH = "group", "mapping", "truth"


def name_rule(reference: Call, candidate: Call) -> str:
    """The simplest reason for which two calls belong together."""
    if reference.name == candidate.name:
        return SAME_NAME
    if reference.kind in ("module", "parameters_grad"):
        return _module_rule(reference, candidate)
    if reference.index == candidate.index and canonical_op(reference) == canonical_op(candidate):
        return SPELLING
    return SEQUENCE


def _module_rule(reference: Call, candidate: Call) -> str:
    if reference.path == candidate.path:
        # msprobe's parameters_grad.0; else another class, or another call of the same module
        return (
            SPELLING if reference.index == candidate.index and word_of(reference) == word_of(candidate) else MODULE_TREE
        )
    return WRAPPER if unwrap(reference.path) == unwrap(candidate.path) else MODULE_TREE


@lru_cache(maxsize=16384)
def unwrap(path: str) -> str:
    """A module path without the parts that wrappers put into it."""
    return ".".join(segment for segment in path.split(".") if segment not in WRAPPER_SEGMENTS)
