"""A tensor that waits to be written, on the device where it was computed."""

from __future__ import annotations

import torch

from tensorprobe.capture.torch.beside_graph import beside_graphs


class TensorCopy:
    """A copy on the device of its tensor; it comes to the host in the thread that writes it, so that the training
    thread need not wait."""

    __slots__ = ("_event", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def to_host(self) -> torch.Tensor:
        if self._event is None:
            return self._tensor.cpu()
        with beside_graphs():
            self._event.synchronize()
            return self._tensor.cpu()
