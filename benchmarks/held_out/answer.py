"""What is the right answer to a case, what did compare say, and do they agree?

- A right pair is `silent` or a `false alarm`.
- A fault is `exact` if a named call is at a line of the answer, or a function of the answer in one of its modules;
  `near` if it is in the same function of the file, in the same module, the one around it or one inside it, or if it is
  the second of two faults; else `wrong`. `missed`: the runs are said to agree.
- A fault that changes neither loss nor gradients may also be passed over: that is `silent`.
- `not compared`: nothing was said either way. `error`: compare did not finish.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OUTCOMES = ("silent", "false alarm", "exact", "near", "wrong", "missed", "not compared", "error")
LARGEST_GROUP = 8
"""Naming more calls than this names nothing."""
UNDECIDED = ("incomplete", "unrelated", "not compared")
_MODULE = re.compile(r"^(?:Module|Cell)\.(?:(.*)\.)?[^.]+\.(?:forward|backward|recompute)\.\d+")
Line = tuple[str, int]


@dataclass(frozen=True)
class Named:
    """A call that a verdict names."""

    name: str
    path: str | None = None
    """The module around it; of a module's own record, the module."""
    lines: frozenset[Line] = frozenset()

    @property
    def word(self) -> str:
        """The function: `add` of `Tensor.__radd__.3.forward`."""
        parts = self.name.split(".")
        word = parts[-3] if len(parts) >= 3 else self.name
        return word.strip("_").lower()

    @property
    def is_module(self) -> bool:
        return _MODULE.match(self.name) is not None


@dataclass(frozen=True)
class Saying:
    kind: str
    """The kind of verdict, or `error`."""
    text: str = ""
    calls: tuple[Named, ...] = ()


@dataclass(frozen=True)
class Answer:
    lines: frozenset[Line] = frozenset()
    around: tuple[tuple[str, int, int], ...] = ()
    """Functions of a file around those lines: its name, their first and last lines."""
    modules: frozenset[str] = frozenset()
    """Empty where lines alone are the answer."""
    words: frozenset[str] = frozenset()
    is_setting: bool = False
    """A setting of one module is wrong, so that naming the module names it."""
    parameter: str = ""
    has_effect: bool = True
    second: Answer | None = None


def judge(saying: Saying, answer: Answer | None) -> str:
    """`None`: the pair is right."""
    if saying.kind == "error":
        return "error"
    if saying.kind in UNDECIDED:
        return "not compared"
    if saying.kind == "agree":
        return "silent" if answer is None or not answer.has_effect else "missed"
    if answer is None:
        return "false alarm"
    if any(_is_exact(call, answer) for call in saying.calls) or _is_parameter(saying, answer):
        return "exact"
    return "near" if any(_is_near(call, answer) for call in saying.calls) else "wrong"


def _is_exact(call: Named, answer: Answer) -> bool:
    if not answer.modules:
        return bool(call.lines & answer.lines)
    if call.path not in answer.modules:
        return False
    if call.is_module:
        return answer.is_setting
    return _fits(call.word, answer.words) or bool(call.lines & answer.lines)


def _fits(word: str, words: frozenset[str]) -> bool:
    """`iadd` and `radd` are `add`; so is `add` with what marks it as in place."""
    return any(word in (one, f"i{one}", f"r{one}", f"true{one}") for one in words)


def _is_parameter(saying: Saying, answer: Answer) -> bool:
    """A parameter that differed from the start, by its own name or by the last words of it."""
    return bool(answer.parameter) and saying.kind == "unequal start" and answer.parameter in saying.text


def _is_near(call: Named, answer: Answer) -> bool:
    if answer.second is not None and (_is_exact(call, answer.second) or _is_near(call, answer.second)):
        return True
    if any(file == name and first <= line <= last for file, line in call.lines for name, first, last in answer.around):
        return True
    if call.path is None or not answer.modules:
        return False
    return any(call.path == one or _parent(call.path) == one or _parent(one) == call.path for one in answer.modules)


def _parent(path: str) -> str | None:
    return path.rpartition(".")[0] if path else None


def path_of(name: str, module_path: str | None) -> str | None:
    """Where a call is: a module's own record stands for the module, others for the module around them."""
    found = _MODULE.match(name)
    return module_path if found is None else found[1] or ""
