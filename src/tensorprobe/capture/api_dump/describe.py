"""Arguments and results as leaves, for api_dump: what its filter leaves out has no file, and single numbers may have
one."""

from __future__ import annotations

from typing import Any

from tensorprobe.capture.describe import Describer, describe_plain
from tensorprobe.capture.storing import Storing
from tensorprobe.model.name import slot_file_name
from tensorprobe.model.record import TensorLeaf
from tensorprobe.store.api_dump_info import is_number, is_saved


class ApiDumpDescriber(Describer):
    """All of it is described, and what the window wants is stored."""

    is_filtered = True
    """Are only tensors of floating-point numbers stored, and of those only what is more than one number?"""

    def store(self, leaf: TensorLeaf, slot: str, tensor: Any) -> None:
        if is_saved(leaf, is_filtered=self.is_filtered):
            super().store(leaf, slot, tensor)

    def describe_plain(self, value: Any, slot: str, stores: Storing) -> dict[str, Any] | TensorLeaf:
        leaf = describe_plain(value)
        if stores and not self.is_filtered and is_number(value) and isinstance(leaf, dict):
            leaf["data_name"] = slot_file_name(slot, self._suffix)
            self._queue.put_number(leaf["data_name"], value)
        return leaf
