"""The memory that a collective only writes to. What it holds before means nothing: it is undefined until the result has
come, however it was allocated and whichever thread did that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensorprobe.capture.torch.api_name import Api
from tensorprobe.capture.torch.collective_argument import find_received
from tensorprobe.capture.torch.content import tensors_in
from tensorprobe.capture.torch.hiding import isolated
from tensorprobe.capture.torch.undefined_memory import UndefinedMemory


class Received:
    """Of one collective, from its start until somebody has waited for it. Keeps no tensor alive."""

    def __init__(self, memory: UndefinedMemory, api: Api, args: Sequence[Any], kwargs: dict[str, Any]) -> None:
        self._memory = memory
        received = find_received(api, args, kwargs)
        own = {id(tensor) for tensor in received}
        sent = [tensor for tensor in tensors_in((args, kwargs)) if id(tensor) not in own]
        defined = [tensor for tensor in sent if not memory.has(tensor)]
        with isolated():
            regions = [memory.mark(tensor) for tensor in received]
            for tensor in defined:  # it may lie in the memory that the result will fill
                memory.define(tensor)
        is_from_undefined = len(defined) < len(sent)
        self._regions = [region for region in regions if region is not None and not is_from_undefined]

    def define(self) -> None:
        """The result has come, or will never be seen to come."""
        for region in self._regions:
            self._memory.define_region(region)
