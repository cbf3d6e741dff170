"""After which call nobody looks at a tensor any more."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from tensorprobe.replay.program import Operation, Program
from tensorprobe.run.leaf import Leaf


def find_last_uses(program: Program) -> dict[str, tuple[list[int], list[int]]]:
    """For each call the tensors and storages that nobody looks at after it."""
    last_tensor: dict[int, str] = {}
    last_storage: dict[int, str] = {}
    for operation in program.endings():
        for leaf in () if operation.is_part else leaves_of(operation):
            if leaf.tensor is not None:
                last_tensor[leaf.tensor] = operation.name
            if leaf.storage is not None:
                last_storage[leaf.storage] = operation.name
    found: dict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for number, name in last_tensor.items():
        found[name][0].append(number)
    for number, name in last_storage.items():
        found[name][1].append(number)
    return found


def leaves_of(operation: Operation) -> Iterator[Leaf]:
    """The tensors of a call, and of those that a layer is made of."""
    yield from (*operation.inputs, *operation.outputs)
    if operation.is_layer:
        yield from operation.state_leaves
        for part in operation.children:
            yield from leaves_of(part)
