"""capture.py for PyTorch: the GPT of gpt.py, and msprobe beside tensorprobe where it is installed."""

from __future__ import annotations

import argparse
import importlib.util
import json

from gpt import SIZES, make_program
from pair import describe_place, measure, show_cases

from capture import LEVELS, WAYS


def run(options: argparse.Namespace) -> None:
    if options.case is not None:
        print(json.dumps(measure(options.case, lambda: make_program(SIZES[options.size], options.device), options)))
        return
    tools = ["tensorprobe"] + (["msprobe"] if importlib.util.find_spec("msprobe") else [])
    print(f"{describe_place(options.device)}, size {options.size}, {options.repeat} pairs")
    show_cases(
        [
            (tool, level, way)
            for way in options.way or WAYS
            for level in options.level or LEVELS
            for tool in tools
            if not (tool == "msprobe" and way == "hash")
        ]
    )
