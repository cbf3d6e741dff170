"""Feeds the readers of a dump with spoilt files, by hand and for as long as one likes.

    python benchmarks/fuzz.py pt --seconds 60          mutate valid files at random
    python benchmarks/fuzz.py pt --atheris CORPUS      guided by coverage, where atheris is installed

Targets: `records` (dump.json, read as `show` and `compare` do), `npy`, `pt` (tensor files), `mapping` (the YAML file of
names), `compare` (two whole dumps, one of them spoilt). A reader may refuse a file with a TensorprobeError, and nothing
else: any other exception is printed with the path of the file that caused it. The file is written before it is read, so
that it is there even when the process dies of it.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests" / "store"
NUMBERS = (b"0", b"-1", b"1e999", b"99999999999999999999", b"NaN", b"null", b"true", b'""', b"[]", b"{}", b"[[[[[[[[")
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x28, 0x29, 0x2E, 0x51, 0x52, 0x63, 0x74, 0x85, 0x8A)
ODD = (
    *(
        None,
        True,
        -1,
        0,
        3,
        1 << 70,
        -(1 << 70),
        0.0,
        -1.5,
        math.nan,
        math.inf,
        -math.inf,
        "",
        "x",
        "../../x",
        "torch.int3",
    ),
    *([], {}, [[]], [{}], {"": {}}, {"type": 3}, {"type": "x"}, {"shape": [2]}, {"dtype": "x", "type": "torch.Tensor"}),
    *([-1], [1 << 70, 2], [True], [0], ["2"], {"type": "torch.Tensor", "shape": [2], "Max": math.nan, "Norm": -1}),
    *({"type": "int", "value": []}, {"type": "slice", "value": 1}, {"type": "torch.Tensor", "data_name": "../x"}),
)


def main() -> None:
    options = parse_options()
    with tempfile.TemporaryDirectory() as name:
        target = Target(TARGETS[options.target], Path(name), Path(options.keep))
        seeds = SEEDS[options.target]()
        if options.atheris is not None:
            run_atheris(target, options.atheris, seeds)
        else:
            run_at_random(target, seeds, options.seconds, options.seed)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", metavar="CORPUS", help="a folder for what atheris finds; it is filled with seeds")
    parser.add_argument("--keep", default="fuzz-failure", help="where a file that breaks a reader is kept")
    return parser.parse_args()


class Target:
    """One reader, and what it has been through."""

    def __init__(self, read: Callable[[Path, bytes], None], folder: Path, kept: Path) -> None:
        self._read, self._folder, self._kept = read, folder, kept
        self.accepted = self.refused = self.failed = 0

    def __call__(self, content: bytes) -> None:
        from tensorprobe.errors import TensorprobeError

        try:
            self._read(self._folder, content)
            self.accepted += 1
        except TensorprobeError:
            self.refused += 1
        except Exception:
            self.failed += 1
            path = Path(f"{self._kept}-{self.failed}")
            path.write_bytes(content)
            traceback.print_exc()
            print(f"caused by {path}", file=sys.stderr, flush=True)


def run_at_random(target: Target, seeds: list[bytes], seconds: float, seed: int) -> None:
    chance = random.Random(seed)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends and target.failed < 10:
        is_text = seeds[0][:1] == b"{" and chance.random() < 0.7
        target(mutate_json(chance, seeds) if is_text else mutate(chance, seeds))
    print(f"{target.accepted:,} files were read, {target.refused:,} refused, {target.failed} broke the reader")
    sys.exit(1 if target.failed else 0)


def run_atheris(target: Target, corpus: str, seeds: list[bytes]) -> None:
    import atheris

    folder = Path(corpus)
    folder.mkdir(exist_ok=True)
    for number, content in enumerate(seeds):
        (folder / f"seed{number}").write_bytes(content)

    def run(content: bytes) -> None:
        before = target.failed
        target(content)
        if target.failed > before:
            raise RuntimeError("the reader broke")

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], corpus], run)
    atheris.Fuzz()


def mutate(chance: random.Random, seeds: list[bytes]) -> bytes:
    content = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        place = chance.randrange(len(content) + 1)
        length = min(chance.choice((1, 2, 4, 8, 64, 1024)), len(content))
        match chance.randrange(8):
            case 0 if content:
                content[place % len(content)] ^= 1 << chance.randrange(8)
            case 1 if content:
                content[place % len(content)] = chance.choice(BYTES)
            case 2:
                del content[place : place + length]
            case 3:
                content[place:place] = content[place : place + length]
            case 4:
                other = chance.choice(seeds)
                start = chance.randrange(len(other))
                content[place : place + length] = other[start : start + length]
            case 5:
                content[place : place + length] = chance.choice(NUMBERS)
            case 6:
                content[place : place + length] = chance.randbytes(length)
            case 7:
                number = chance.choice((0, 1, 255, 1 << 15, (1 << 31) - 1, (1 << 32) - 1, (1 << 63) - 1))
                content[place : place + 8] = number.to_bytes(8, "little")
    return bytes(content[: 1 << 20])


def mutate_json(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Still JSON, with odd values in odd places."""
    content = json.loads(chance.choice(seeds))
    for _ in range(chance.choice((1, 2, 4, 16))):
        node = content
        while isinstance(node, (dict, list)) and node:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = chance.choice(keys)
            if chance.random() < 0.15 or not isinstance(node[key], (dict, list)) or not node[key]:
                node[key] = copy.deepcopy(chance.choice(ODD))
                break
            node = node[key]
    return json.dumps(content).encode()


# The readers.


def read_tensor(folder: Path, content: bytes) -> None:
    from tensorprobe.compare.measure import measure_arrays
    from tensorprobe.store.tensor_file import open_tensor

    path = folder / "x"
    path.write_bytes(content)
    array = open_tensor(path, "torch.bfloat16")
    if array.size < 1 << 20:
        measure_arrays(array, array, 1e-4, 1e-4)


def read_records(folder: Path, content: bytes) -> None:
    from tensorprobe.store.reader import open_dump

    (folder / "dump.json").write_bytes(content)
    for rank in open_dump(folder).ranks():
        for record in rank.records():
            list(record.slots())
        assert isinstance(rank.problems, tuple)


def compare_dumps(folder: Path, content: bytes) -> None:
    from tensorprobe.compare.engine import compare

    for side, text in (("reference", dump_seeds()[0]), ("candidate", content)):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / "dump.json").write_bytes(text)
    compare(folder / "reference", folder / "candidate", processes=1)
    for side in ("reference", "candidate"):
        shutil.rmtree(folder / side)


def read_names(folder: Path, content: bytes) -> None:
    from tensorprobe.compare.mapping import read_mapping

    path = folder / "mapping.yaml"
    path.write_bytes(content)
    read_mapping(path)


def tensor_seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted((TESTS / "tensor_file").glob("*.pt"))]


def npy_seeds() -> list[bytes]:
    seeds = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "x.npy"
        for dtype in ("f2", "f4", "f8", "c8", "c16", "i1", "i8", "u8", "?", ">f4", "V2"):
            for shape in ((), (0,), (2, 3), (1, 2, 3, 4)):
                np.save(path, np.zeros(shape, dtype), allow_pickle=False)
                seeds.append(path.read_bytes())
    return seeds


def dump_seeds() -> list[bytes]:
    return [path.read_bytes() for path in sorted((TESTS / "msprobe_dump").rglob("dump.json"))]


def mapping_seeds() -> list[bytes]:
    return [
        b"calls:\n  Functional.gelu.0: Functional.gelu.1\nmodules:\n  encoder.layers: backbone.blocks\n",
        b'modules:\n  "encoder.*.attn": "blocks.*.attention"\n  0: 1\ntensors: {a.0.forward.input.1: b.0}\n',
        b"# names\ncalls: &x\n  ? [a, b]\n  : !!str 2024-01-01\nmodules: *x\ntensors: |\n  text\n",
        b"%YAML 1.2\n---\ncalls: {a: 'b', \"c\\u0041\": .nan, <<: {d: ~}}\n...\n",
    ]


TARGETS: dict[str, Callable[[Path, bytes], None]] = {
    "records": read_records,
    "npy": read_tensor,
    "pt": read_tensor,
    "mapping": read_names,
    "compare": compare_dumps,
}
SEEDS = {"records": dump_seeds, "npy": npy_seeds, "pt": tensor_seeds, "mapping": mapping_seeds, "compare": dump_seeds}

if __name__ == "__main__":
    main()
