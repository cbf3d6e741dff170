"""Memory that nobody has written to holds NaN, so that whoever takes it for data is found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def poisoned() -> Iterator[None]:
    """torch fills what `empty` and `resize_` hand out; a storage that grows is filled here."""
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    resize = torch.UntypedStorage.resize_

    def resize_(storage: Any, size_bytes: int) -> Any:
        kept = min(storage.nbytes(), size_bytes)
        answer = resize(storage, size_bytes)
        with torch._C.DisableTorchFunction():  # this is no call of the program's
            torch.empty(0, dtype=torch.uint8).set_(storage)[kept:].fill_(0xFF)
        return answer

    torch.use_deterministic_algorithms(True)
    torch.UntypedStorage.resize_ = resize_
    try:
        yield
    finally:
        del torch.UntypedStorage.resize_
        torch.use_deterministic_algorithms(is_deterministic)
