"""What capture costs in a real model at real size: a Llama of two billion parameters in bfloat16, sequences of 2048
tokens, every layer checkpointed, fused AdamW.

    python benchmarks/llama.py --device cuda --deterministic --repeat 7
    python benchmarks/llama.py --device cuda --deterministic --compiled      eight layers of it, with compiled MLPs
    python benchmarks/llama.py --size tiny                                   on a CPU, in seconds

As capture.py: plain and captured steps take turns in one process, each case in a process of its own; ratios are medians
over pairs of neighbours; the loss is that of a twin that never was captured, bit for bit, or it says CHANGED. Without
--deterministic it may change by itself on a GPU.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace

from llama_model import SIZES, Size, count_parameters, make_program
from pair import describe_place, measure, show_cases

from capture import LEVELS, WAYS

CASES = [("L0", "statistics"), ("L1", "statistics"), ("mix", "statistics"), ("L1", "hash")]
COMPILED_CASES = [("L1", "statistics")]
COMPILED_LAYERS = 8


def main() -> None:
    options = parse_options()
    size = choose_size(options)
    if options.case is not None:
        print(json.dumps(measure(options.case, lambda: make_program(size, options.device), options)))
        return
    print(f"{describe_place(options.device)}, {describe_size(size)}, {options.repeat} pairs")
    show_cases([("tensorprobe", level, way) for level, way in choose_cases(options)])


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", default="2b", choices=SIZES)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, help="how many sequences")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--compiled", action="store_true", help="eight layers, whose MLPs torch.compile makes")
    parser.add_argument("--level", action="append", choices=LEVELS)
    parser.add_argument("--way", action="append", choices=WAYS)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--profile", help="write a cProfile of a captured step to this file")
    parser.add_argument("--disk", action="store_true", help="hold what a step writes against dd")
    parser.add_argument("--folder", help="where the dumps go; a temporary folder if it is not given")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    return parser.parse_args()


def choose_size(options: argparse.Namespace) -> Size:
    size = SIZES[options.size]
    if options.compiled:
        size = replace(size, layers=COMPILED_LAYERS, is_compiled=True)
    given = {name: getattr(options, name) for name in ("batch", "layers") if getattr(options, name) is not None}
    return replace(size, **given)


def choose_cases(options: argparse.Namespace) -> list[tuple[str, str]]:
    if options.level or options.way:
        return [(level, way) for way in options.way or ["statistics"] for level in options.level or LEVELS]
    return COMPILED_CASES if options.compiled else CASES


def describe_size(size: Size) -> str:
    shape = f"{size.layers}x{size.width}, {size.batch}x{size.tokens} tokens, {size.dtype}".replace("torch.", "")
    compiled = ", compiled MLPs" if size.is_compiled else ""
    return f"Llama of {count_parameters(size):,} parameters ({shape}{compiled})"


if __name__ == "__main__":
    main()
