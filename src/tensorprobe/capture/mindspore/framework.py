"""MindSpore, as the engine sees it."""

from __future__ import annotations

from tensorprobe.config.api_list import ApiList


class MindSporeFramework:
    """The adapter of MindSpore."""

    name = "mindspore"
    file_suffix = "npy"

    def __init__(self, api_list: ApiList | None = None) -> None:
        self._api_list = api_list
