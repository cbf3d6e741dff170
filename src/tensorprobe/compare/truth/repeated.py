"""What one call computes is computed once more, where the other run computes something else of the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from tensorprobe.compare.truth.call_likeness import word_of
from tensorprobe.compare.truth.difference import Difference
from tensorprobe.compare.truth.same_array import is_constant
from tensorprobe.compare.truth.value_index import Likeness
from tensorprobe.replay.true_step import TrueCall, TrueStep


def find_repeated(
    one: Difference, beginnings: Sequence[TrueCall], steps: Mapping[str, TrueStep], likeness: Likeness
) -> Iterator[Difference]:
    """All that the candidate's call is given is in the reference, too, but in another place. `beginnings`: the calls of
    the reference whose results the candidate has not."""
    step, call = steps["candidate"], one.candidate
    if one.reference is None:
        return
    inputs = [root.number for root in step.roots] if call is None else call.inputs.values()
    given = {number for number in inputs if step.values[number].is_floating}
    leading = given | step.find_before(given)
    for other in beginnings:
        taken = [steps["reference"].values[number] for number in other.inputs.values()]
        telling = [value for value in taken if value.is_floating]
        likes = {like.number for value in telling for like in likeness.of("reference", value)}
        users = [user for user in step.calls.values() if not likes.isdisjoint(user.inputs.values())]
        users = [user for user in users if not leading.isdisjoint(user.outputs.values())]
        for place, user in enumerate(users):
            first = next((before for before in users[:place] if _gives_the_same(before, user, step)), None)
            is_before = other.position <= one.reference.position
            if first is not None and is_before and not _is_repeated_there(user, step, likeness):
                because = f"it repeats what {first.name} computed, but the reference computes something different here"
                yield Difference("source", other, user, because, is_clear=True)
                return


def _gives_the_same(first: TrueCall, second: TrueCall, step: TrueStep) -> bool:
    """Twice the same, by one function, and not only in another order?"""
    if word_of(first) != word_of(second) or len(first.outputs) != len(second.outputs) or step.only_moves(second):
        return False
    pairs = zip(first.outputs.values(), second.outputs.values(), strict=True)
    arrays = [(step.values[one].array, step.values[other].array) for one, other in pairs]
    is_telling = not all(is_constant(one) for one, _ in arrays)  # zeros to begin with are made many times
    return first.outputs != second.outputs and is_telling and all(np.array_equal(*pair) for pair in arrays)


def _is_repeated_there(call: TrueCall, step: TrueStep, likeness: Likeness) -> bool:
    """Does the other run compute what this call gives more than once, too?"""
    values = [step.values[number] for number in call.outputs.values()]
    return any(len({like.maker for like in likeness.of("candidate", value)}) > 1 for value in values)
