"""Tensors as leaves: identity, statistics, checksum, files. Called on the hot path, with tensors that belong to the
user.

Everything here works on detached tensors, changes nothing, and leaves no attribute or hook behind.
"""

from __future__ import annotations

from typing import Any, BinaryIO

import torch

from tensorprobe.capture.torch.digest import crc32_digest, hash_digest
from tensorprobe.capture.torch.statistics import Reducer
from tensorprobe.capture.torch.value import KnownStorage, Layout, ValueTable, permutation_key
from tensorprobe.model.record import Stats, TensorLeaf, Value

_DIGESTS = {"md5": crc32_digest, "hash": hash_digest}
_SPARSE_LAYOUTS = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class TorchReader:
    """What is known of torch tensors in one session."""

    tensor_type = torch.Tensor
    atoms: tuple[type, ...] = (torch.Tensor, torch.Size)

    def __init__(self, *, has_stats: bool, digest_kind: str | None) -> None:
        self.values = ValueTable()
        self._has_stats = has_stats
        self._digest_kind = digest_kind
        self._reducer = Reducer()

    def read(self, tensor: torch.Tensor, produced_by: str | None) -> TensorLeaf:
        """A leaf for the value that `tensor` has now."""
        value, known, layout = self.values.find(tensor, produced_by)
        reason = None
        if value is None:
            value, reason = self._make_value(tensor, known, layout)
            if known is not None:
                self.values.remember(value, known, layout, produced_by)
        elif produced_by is not None and known is not None:
            known.last_source = value.source or produced_by
        source = value.source or (known.last_source if known is not None else None)
        return TensorLeaf(
            "torch.Tensor",
            str(tensor.dtype),
            tuple(tensor.shape),
            tensor.requires_grad,
            value,
            source if source != produced_by else None,
            note=describe_kind(tensor),
            is_storable=reason is None,
        )

    def copy(self, tensor: torch.Tensor) -> TensorCopy:
        return TensorCopy(plain_content(tensor).clone(memory_format=torch.preserve_format))

    def size_bytes(self, tensor: torch.Tensor) -> int:
        return tensor.numel() * tensor.element_size() if tensor.layout is torch.strided else 1 << 16

    def add(self, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return first.detach() + second.detach()

    def write_file(self, copy: TensorCopy, file: BinaryIO) -> None:
        torch.save(copy.to_host(), file)

    def describe_object(self, value: Any) -> dict[str, Any] | None:
        if isinstance(value, torch.Size):
            return {"type": "torch.Size", "value": list(value)}
        if isinstance(value, (torch.dtype, torch.device, torch.memory_format, torch.layout)):
            return {"type": f"torch.{type(value).__name__}", "value": str(value)}
        return None

    def fetch(self) -> None:
        self._reducer.fetch()

    def forget(self) -> None:
        self.values.forget()

    def _make_value(self, tensor: torch.Tensor, known: KnownStorage | None, layout: Layout) -> tuple[Value, str | None]:
        reason = missing_content(tensor)
        if not self._has_stats:
            return Value(None), reason
        if reason is not None:
            return Value(Stats(reason=reason)), reason
        key = permutation_key(tensor, layout) if known is not None and known.is_trusted else None
        stats = known.stats.get(key) if known is not None and key is not None else None
        content = None
        if stats is None:
            content = statistics_content(tensor)
            stats = self._reducer.reduce(content)
            if known is not None and key is not None:
                known.stats[key] = stats
        value = Value(stats)
        if self._digest_kind is not None:
            value.digest_kind = self._digest_kind
            value.digest = _DIGESTS[self._digest_kind](
                plain_content(tensor).to_dense() if is_sparse(tensor) else plain_content(tensor)
            )
        return value, None


class TensorCopy:
    """A copy on the device of its tensor; it comes to the host in the thread that writes it, so that the training
    thread need not wait."""

    __slots__ = ("_event", "_tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor
        self._event = torch.cuda.current_stream(tensor.device).record_event() if tensor.is_cuda else None

    def to_host(self) -> torch.Tensor:
        if self._event is not None:
            self._event.synchronize()
        return self._tensor.cpu()


def missing_content(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no numbers to look at; None if it has."""
    if tensor.device.type == "meta":
        return "meta tensor"
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return "inside a function transform"
    if type(tensor).__name__ == "FakeTensor":
        return "fake tensor"
    if tensor.layout is torch.strided and tensor.numel() and tensor.untyped_storage().nbytes() == 0:
        return "memory not allocated"
    return None


def statistics_content(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor with the same statistics."""
    content = plain_content(tensor)
    if is_sparse(content):
        return content.to_dense()
    if content.is_quantized:
        return content.dequantize()
    return content


def plain_content(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, and without a subclass around it."""
    content = tensor.detach()
    if type(content) not in (torch.Tensor, torch.nn.Parameter):
        local = getattr(content, "to_local", None)
        content = local() if local is not None else content.as_subclass(torch.Tensor)
    if content.layout is torch.strided and not content.is_quantized and (content.is_conj() or content.is_neg()):
        content = content.resolve_conj().resolve_neg()
    return content


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout in _SPARSE_LAYOUTS


def describe_kind(tensor: torch.Tensor) -> str | None:
    """What is not plain about a tensor."""
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.")
    return "quantized" if tensor.is_quantized else None
