"""The modules of one run as a tree, each with the calls made in it.

The tree is built from module paths alone, which every level has: L1 has no records of modules. A path comes from the
dump, so its depth is bounded and nothing here recurses.
"""

from __future__ import annotations

from collections.abc import Iterator

from tensorprobe.model.name import FORWARD
from tensorprobe.run.call import Call
from tensorprobe.run.step import Run
from tensorprobe.word.spelling import WRAPPER_SEGMENTS

_MAX_DEPTH = 64


class ModuleNode:
    """One module. Call numbers are places in the run's list of calls."""

    __slots__ = ("children", "events", "gradients", "name", "parent", "path", "paths", "records")

    def __init__(self, name: str, path: str | None, parent: ModuleNode | None) -> None:
        self.name = name
        self.path = path
        """As the dump has it, of the innermost module where wrappers were merged; None for what no module contains."""
        self.paths = [path]
        """The paths of the wrappers that were merged into it, outermost first, and its own."""
        self.parent = parent
        self.children: dict[str, ModuleNode] = {}
        self.events: list[int | ModuleNode] = []
        """API calls made in it and the children that were entered between them, in order."""
        self.records: list[int] = []
        """Its own forward calls, and those of the wrappers that were merged into it."""
        self.gradients: list[int] = []

    def __repr__(self) -> str:
        return f"<ModuleNode {self.path}>"

    def way_up(self) -> list[ModuleNode]:
        """It and all that contain it, innermost first."""
        way: list[ModuleNode] = []
        node: ModuleNode | None = self
        while node is not None:
            way.append(node)
            node = node.parent
        return way

    def walk(self) -> Iterator[ModuleNode]:
        """It and all below it, parents first."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node  # may change its children
            waiting.extend(reversed(node.children.values()))


class ModuleTree:
    """`top` is what lies outside of all modules, its child `root` the model itself."""

    def __init__(self) -> None:
        self.top = ModuleNode("", None, None)
        self.root = ModuleNode("", "", self.top)
        self.top.children[""] = self.root
        self.node_of_path: dict[str | None, ModuleNode] = {None: self.top, "": self.root}

    def node(self, path: str | None) -> ModuleNode:
        """The node of a path, made with all above it when it is not there yet."""
        found = self.node_of_path.get(path)
        if found is not None:
            return found
        assert path is not None
        node = self.root
        walked = ""
        for segment in path.split(".", _MAX_DEPTH - 1):
            walked = f"{walked}.{segment}" if walked else segment
            child = node.children.get(segment)
            if child is None:
                child = node.children[segment] = ModuleNode(segment, walked, node)
                self.node_of_path[walked] = child
            node = child
        self.node_of_path[path] = node
        return node

    def merge_wrappers(self) -> None:
        """A wrapper and the only module it holds become one node, so that `module.conv1` is where `conv1` is."""
        for node in self.root.walk():  # children are looked at after their parent has taken theirs
            while len(node.children) == 1:
                child = next(iter(node.children.values()))
                if child.name not in WRAPPER_SEGMENTS:
                    break
                node.children = child.children
                node.path = child.path
                node.paths.extend(child.paths)
                for grandchild in child.children.values():
                    grandchild.parent = node
                for path in child.paths:
                    self.node_of_path[path] = node


def is_user_forward(call: Call) -> bool:
    """A forward call of the user's program: of an API, or of a module."""
    return call.direction == FORWARD and call.caller is None and call.kind in ("api", "module")


def build_tree(run: Run, paths: list[str | None], is_flat: bool, has_no_top: bool) -> ModuleTree:
    """`paths` has the context of every call. Flat: API calls are taken as if no module contained them.

    Without a top, what is outside of all modules counts as part of the model: msprobe does not tell them apart.
    """
    tree = ModuleTree()
    calls = run.calls
    for path in dict.fromkeys(path for call, path in zip(calls, paths, strict=True) if call.kind != "saved"):
        tree.node(path)
    tree.merge_wrappers()
    previous = tree.top
    for number, (call, path) in enumerate(zip(calls, paths, strict=True)):
        if call.kind == "parameters_grad":
            tree.node(path).gradients.append(number)
        elif is_user_forward(call):
            if call.kind == "module":
                tree.node(path).records.append(number)
                continue
            node = tree.root if has_no_top and path is None else tree.node(None if is_flat else path)
            if node is not previous:
                _enter(previous, node)
                previous = node
            node.events.append(number)
    return tree


def _enter(previous: ModuleNode, node: ModuleNode) -> None:
    """Note in every module on the way from one to the other which child was entered."""
    above = set(previous.way_up())
    way = []
    while node not in above and node.parent is not None:
        way.append(node)
        node = node.parent
    for entered in reversed(way):
        assert entered.parent is not None
        entered.parent.events.append(entered)
