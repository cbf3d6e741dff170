"""Modules of a dump that knows nothing of them but their paths (another tool's): those of one path are the same."""

from __future__ import annotations

from tensorprobe.run.module_tree import ModuleNode, ModuleTree
from tensorprobe.run.step import Run
from tensorprobe.store.foreign.step import BY_PATH, MODULES


def match_paths(
    reference: Run, reference_tree: ModuleTree, candidate: Run, candidate_tree: ModuleTree
) -> dict[ModuleNode, ModuleNode]:
    """Empty where both dumps say more of their modules."""
    if all(run.rank.header.get(MODULES) != BY_PATH for run in (reference, candidate)):
        return {}
    others = {path: node for node in candidate_tree.top.walk() for path in node.paths if path is not None}
    return {
        node: others[node.path]
        for node in reference_tree.top.walk()
        if node.path is not None and node.path in others and (node.records or others[node.path].records)
    }
