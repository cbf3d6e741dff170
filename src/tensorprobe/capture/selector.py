"""Which records a configuration wants: scope, list, data_mode, tensor_list. Knows names only."""

from __future__ import annotations

from tensorprobe.capture.storing import Storing
from tensorprobe.config import CaptureConfig

_STORING = {"tensor": Storing.ALL, "replay": Storing.LEAVES}


class Selector:
    """Answers for one session. `scope` makes it follow the order of execution: each record says when it begins and
    when it has ended."""

    def __init__(self, config: CaptureConfig) -> None:
        directions = config.data_mode & {"forward", "backward"}
        roles = config.data_mode & {"input", "output"}
        self.keeps_forward = not directions or "forward" in directions
        self.keeps_backward = not directions or "backward" in directions
        self.keeps_inputs = not roles or "input" in roles
        self.keeps_outputs = not roles or "output" in roles
        self._scope = config.scope
        self._list = config.list
        self._tensor_list = config.tensor_list
        self._storing = _STORING.get(config.task, Storing.NONE)
        self._is_inside_scope = not config.scope
        self.is_selective = bool(config.scope or config.list)

    def restart(self) -> None:
        """A new step: the scope begins anew."""
        self._is_inside_scope = not self._scope

    def begin(self, name: str) -> bool:
        """A record begins: is it inside the scope?"""
        if self._scope and name == self._scope[0]:
            self._is_inside_scope = True
        return self._is_inside_scope

    def end(self, name: str) -> None:
        """A record has ended."""
        if self._scope and name == self._scope[1]:
            self._is_inside_scope = False

    def is_listed(self, name: str) -> bool:
        """Does `list` name it? Without a list everything is named."""
        return not self._list or any(part in name for part in self._list)

    def storing(self, name: str) -> Storing:
        """Which tensors of this record are stored as files?"""
        return Storing.ALL if any(part in name for part in self._tensor_list) else self._storing
