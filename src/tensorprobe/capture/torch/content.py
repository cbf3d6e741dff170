"""What is in a tensor: its elements, without its history and without what is around them, and what there is to say
where there are none.

Reads and copies; changes nothing, and touches no storage in a way that its owner could notice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from tensorprobe.capture.torch.distributed_tensor import content_in_flight, local_part
from tensorprobe.capture.torch.layout import is_dense
from tensorprobe.capture.torch.statistics import without_repeats
from tensorprobe.capture.torch.value import PLAIN_TYPES, is_wrapped

SPARSE_LAYOUTS = {torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}
BITS_ONLY = {
    dtype
    for name in dir(torch)
    if isinstance(dtype := getattr(torch, name), torch.dtype)
    and dtype.itemsize == 1
    and name[-1:].isdigit()
    and name.startswith(("int", "uint"))
    and name not in ("int8", "uint8")
}
"""int1 to int7 and uint1 to uint7."""


def missing_content(tensor: torch.Tensor) -> str | None:
    """Why a tensor has no numbers to look at; None if it has."""
    if tensor.is_meta:
        return "meta tensor"
    if is_wrapped(tensor):
        return "inside a function transform"
    if type(tensor).__name__ in ("FakeTensor", "FunctionalTensor"):
        return "fake tensor"
    if is_lazy(tensor):
        return "not initialized"
    if type(tensor) not in PLAIN_TYPES or tensor.layout is not torch.strided or tensor.is_nested:
        return None
    return missing_memory(tensor, tensor.untyped_storage().nbytes())


def missing_memory(tensor: torch.Tensor, size_bytes: int) -> str | None:
    """The same for a plain tensor, whose storage has this size."""
    if tensor.is_meta:
        return "meta tensor"
    if size_bytes == 0 and tensor.numel():
        return "memory not allocated"
    return None


def statistics_content(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """A dense tensor, and a number of zeros, that have the same statistics together."""
    content = plain_content(tensor)
    if is_sparse(content):
        values = stored_values(content)
        zeros = content.numel() - values.numel()
        return (values, zeros) if zeros else (content.to_dense(), 0)  # not every layout has them in order
    if content.is_quantized:
        return content.dequantize(), 0
    return content, 0


def stored_values(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that a sparse tensor stores, each once. Made dense it may be far too large."""
    return (tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor).values()


def plain_content(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history, and without a subclass around it."""
    content = local_part(tensor)
    if content.is_nested:
        return content.detach().values()
    if type(content) not in PLAIN_TYPES:
        local = getattr(content, "to_local", None)
        content = local() if local is not None else without_subclass(content)
    content = content.detach()
    if content.layout is torch.strided:
        return content if content.is_quantized else content.resolve_conj().resolve_neg()
    return content if is_sparse(content) else content.to_dense()  # mkldnn


def without_subclass(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor. One that `__torch_dispatch__` stands for is asked for a copy only where its content is found
    nowhere else: the program sees that."""
    if not has_dispatch(tensor):
        return tensor.as_subclass(torch.Tensor)
    if has_memory(tensor):
        with torch._C._DisableTorchDispatch():
            return tensor.detach().as_subclass(torch.Tensor)
    inner = wrapped_tensor(tensor)
    if inner is not None:
        return plain_content(inner)
    content = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    with torch.no_grad():
        return content.copy_(tensor)


def without_dispatch(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor without its history; what is computed with it calls no `__torch_dispatch__` of the program."""
    return plain_content(tensor) if has_dispatch(tensor) and not tensor.is_nested else tensor.detach()


def has_dispatch(tensor: torch.Tensor) -> bool:
    """Is it a subclass whose `__torch_dispatch__` is called for whatever is done with it?"""
    return bool(torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python))


def has_memory(tensor: torch.Tensor) -> bool:
    """Does a subclass hold elements itself? Those that are made as wrappers hold none."""
    try:
        return tensor.layout is torch.strided and bool(tensor.untyped_storage().data_ptr())
    except RuntimeError:
        return False


def wrapped_tensor(tensor: torch.Tensor) -> torch.Tensor | None:
    """The one tensor that a wrapper is made of, if it shows that and both look alike."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return None
    names, _ = tensor.__tensor_flatten__()
    inner = getattr(tensor, names[0]) if len(names) == 1 else None
    is_alike = inner is not None and inner.shape == tensor.shape and inner.dtype == tensor.dtype
    return inner if is_alike else None


def own_memory(content: torch.Tensor) -> torch.Tensor:
    """The same elements in a storage that holds nothing else, so that a file of it is no larger."""
    if content.layout is not torch.strided or content._is_zerotensor() or content.dtype in BITS_ONLY:
        return copy_content(content)
    is_whole = content.untyped_storage().nbytes() == content.nbytes and is_dense(content)
    return content if is_whole else copy_content(content)


def copy_content(content: torch.Tensor) -> torch.Tensor:
    """A copy with memory of its own: that of the elements, not of the storage they are in."""
    if content.layout is not torch.strided:
        return content.clone()
    if content.is_quantized and content.qscheme() is not torch.per_tensor_affine:
        return copy_per_channel(content)
    if content.dtype in BITS_ONLY:  # torch neither copies them nor writes them into a file
        content = content.view(torch.uint8)
    distinct = without_repeats(content)
    copy = distinct.clone(memory_format=torch.preserve_format)
    return copy if distinct is content else copy.expand(content.shape)


def copy_per_channel(content: torch.Tensor) -> torch.Tensor:
    """torch clones no tensor that is quantized per channel; of one that is packed, what it stands for is kept."""
    if content.qscheme() is not torch.per_channel_affine or content.dtype is torch.quint4x2:
        return content.dequantize()
    axis, scales, zeros = (
        content.q_per_channel_axis(),
        content.q_per_channel_scales(),
        content.q_per_channel_zero_points(),
    )
    return torch._make_per_channel_quantized_tensor(content.int_repr(), scales.clone(), zeros.clone(), axis)


def is_sparse(tensor: torch.Tensor) -> bool:
    return tensor.layout in SPARSE_LAYOUTS


def shape_of(tensor: torch.Tensor) -> tuple[int, ...]:
    """A nested tensor has no shape: that of the tensor which holds all its values stands for it."""
    if is_lazy(tensor):
        return ()
    return tuple(tensor.values().shape if tensor.is_nested else tensor.shape)


def describe_kind(tensor: torch.Tensor) -> str | None:
    """What is not plain about a tensor."""
    if tensor.is_nested:
        return "nested"
    if tensor.layout is not torch.strided:
        return str(tensor.layout).removeprefix("torch.").strip("_")
    return "quantized" if tensor.is_quantized else None


def storage_of(tensor: torch.Tensor) -> int:
    """The address of the storage in which the content of a tensor is, or will be."""
    return int(content_in_flight(tensor).untyped_storage()._cdata)


def peel(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that torch.func.grad follows; what vmap batches cannot be taken apart."""
    while torch._C._functorch.is_gradtrackingtensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for item in tree:
            yield from tensors_in(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from tensors_in(item)
