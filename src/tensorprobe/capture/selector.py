"""Which records a configuration wants: scope, list, data_mode, tensor_list. Knows names only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tensorprobe.capture.storing import Storing
from tensorprobe.config import CaptureConfig

if TYPE_CHECKING:
    from tensorprobe.capture.call import Call

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
        self.stores_any = bool(self._storing or config.tensor_list)
        """Do tensors of any record get files?"""
        self._is_inside_scope = not config.scope
        self.is_over = False
        """Is nothing more wanted, of this step or any other?"""
        self.is_selective = bool(config.scope or config.list)

    def restart(self) -> None:
        """A new step: the scope begins anew."""
        self._is_inside_scope = not self._scope

    def select(self, call: Call) -> bool:
        """A call begins: is its forward wanted, or its backward? It is told so."""
        if self.is_over:
            call.keeps_forward = call.keeps_backward = False
            return False
        if not self.is_selective:
            call.keeps_forward, call.keeps_backward = self.keeps_forward, self.keeps_backward
            return call.keeps_forward or call.keeps_backward
        call.note_listed(self.is_listed)
        is_inside = self.begin(call.forward_name)
        call.keeps_forward = self.keeps_forward and is_inside and call.is_forward_listed
        call.keeps_backward = self.keeps_backward and call.is_backward_listed
        return call.keeps_forward or call.keeps_backward

    def begin(self, name: str) -> bool:
        """A record begins: is it inside the scope?"""
        if self._scope and name == self._scope[0]:
            self._is_inside_scope = True
        return self._is_inside_scope and not self.is_over

    def end(self, name: str) -> None:
        """A record has ended."""
        if self._scope and name == self._scope[1]:
            self._is_inside_scope = False

    def is_listed(self, name: str) -> bool:
        """Does `list` name it? Without a list everything is named."""
        return not self._list or any(part in name for part in self._list)

    def storing(self, name: str) -> Storing:
        """Which tensors of this record are stored as files?"""
        if not self._tensor_list:
            return self._storing
        return Storing.ALL if any(part in name for part in self._tensor_list) else self._storing
