"""YAML as plain data: no anchors, no name twice in one mapping, and one kind of error for whatever is wrong.

pyyaml's own safe loader fails with any exception on a scalar that is not what its tag says, builds numbers in a time
that grows with the square of their length, and lets a few lines with anchors stand for more than memory holds. Imported
only when such a file is read: training images need not have pyyaml.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from tensorprobe.foreign_text import shorten

_MAX_SCALAR_CHARACTERS = 100
"""Of what is no text: a number, a date, a truth value."""
_TEXT = "tag:yaml.org,2002:str"
_NOT_WHAT_IT_SAYS = (ValueError, KeyError, IndexError, AttributeError, TypeError, ArithmeticError)


@cache
def plain_loader() -> Any:
    """The class of loader, for yaml.load; ImportError without pyyaml."""
    import yaml

    class PlainLoader(yaml.SafeLoader):
        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event = self.peek_event()  # type: ignore[no-untyped-call]
                raise yaml.constructor.ConstructorError(None, None, "anchors are not used", event.start_mark)
            return super().compose_node(parent, index)

        def construct_object(self, node: Any, deep: bool = False) -> Any:
            if not isinstance(node, yaml.ScalarNode) or node.tag == _TEXT:
                return super().construct_object(node, deep)
            try:
                if len(node.value) <= _MAX_SCALAR_CHARACTERS:
                    return super().construct_object(node, deep)
            except _NOT_WHAT_IT_SAYS:
                pass
            kind, value = node.tag.rpartition(":")[2], shorten(node.value, _MAX_SCALAR_CHARACTERS)
            problem = f"{value!r} is no {kind}; put a name in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            seen = set()
            for key, _ in node.value if isinstance(node, yaml.MappingNode) else ():
                if isinstance(key, yaml.ScalarNode) and key.value in seen:
                    raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
                seen.add(key.value if isinstance(key, yaml.ScalarNode) else id(key))
            return super().construct_mapping(node, deep)

    return PlainLoader


def describe_mistake(error: Exception) -> str:
    """What is wrong with a YAML file, in one line, with its place."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None or mark is None:
        return str(error).partition("\n")[0]
    advice = ": indent with spaces" if "'\\t'" in problem else ""
    return f"{problem}{advice} (line {mark.line + 1}, column {mark.column + 1})"
