"""Parameter gradients that DDP or FSDP reduce over ranks: read when the backward pass is over.

While the pass runs, `.grad` holds this rank's own share, or memory that a collective is writing to in the background;
and FSDP2 has other parameters in the modules than before and after. Modules are held weakly, by the names they have.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch

from tensorprobe.capture.recorder import Recorder
from tensorprobe.capture.torch.distributed_tensor import local_part
from tensorprobe.capture.torch.reader import TorchReader

Seen = tuple[weakref.ref[Any], int]
"""A gradient that was there, and the version of its content."""


class ReducedGradients:
    """The gradients of the parameters of some modules, after each backward pass."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._modules: list[tuple[str, weakref.ref[Any]]] = []
        self._seen: dict[tuple[str, str], Seen] = {}

    def __bool__(self) -> bool:
        return bool(self._modules)

    def follow(self, modules: Iterable[tuple[str, torch.nn.Module]]) -> None:
        """Look at these from now on, and at what is in their gradients already as known."""
        self._modules = [(stem, weakref.ref(module)) for stem, module in modules]
        self._seen = {key: seen for key, _, seen in self._present()}

    def read(self) -> None:
        """A backward pass is over, and so is what had waited for its end: record what it has changed."""
        reader = self._recorder.reader
        if self._modules and isinstance(reader, TorchReader):
            reader.doubt()  # collectives have written to the gradients, without a new version
        for key, gradient, seen in list(self._present()):
            before = self._seen.get(key)
            self._seen[key] = seen
            if before is None or before[0]() is not gradient or before[1] != seen[1]:
                self._recorder.add_parameter_gradient(*key, gradient)

    def _present(self) -> Iterable[tuple[tuple[str, str], torch.Tensor, Seen]]:
        for stem, reference in self._modules:
            module = reference()
            for name, parameter in module._parameters.items() if module is not None else ():
                gradient = parameter.grad if parameter is not None else None
                if gradient is not None:
                    yield (stem, name), gradient, (weakref.ref(gradient), local_part(gradient)._version)
