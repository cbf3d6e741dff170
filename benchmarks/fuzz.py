"""Feeds the readers of a dump with spoilt files, by hand and for as long as one likes.

    python benchmarks/fuzz.py pt --seconds 60          mutate valid files at random
    python benchmarks/fuzz.py pt --atheris CORPUS      guided by coverage, where atheris is installed

Targets: `records` (dump.json, as `show` and `compare` read it), `npy` and `pt` (tensor files), `weights` (.pt and
.safetensors of convert_weight), `print` (what MindSpore printed), `stacks` and `run` (what lies beside the records, for
`show` and `recover`), `mapping` and `apis` (YAML files of users), `config` (config.json), `compare` (two whole dumps,
one of them spoilt), `truth` (a whole dump with tensors, whose records, or run.json, are spoilt: it is executed again).
A reader may refuse a file with a TensorprobeError, and nothing else: any other exception is
printed with the path of the file that caused it. The file is written before it is read, so that it is there even when
the process dies of it.
"""

from __future__ import annotations

import argparse
import copy
import functools
import io
import json
import math
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

TESTS = Path(__file__).resolve().parents[1] / "tests" / "store"
sys.path.insert(0, str(TESTS.parents[1]))
NUMBERS = (
    *(
        b"0",
        b"-1",
        b"1e999",
        b"99999999999999999999",
        b"9" * 5_000,
        b"NaN",
        b"Infinity",
        b"null",
        b"true",
        b'""',
        b"[]",
    ),
    *(b"{}", b"[[[[[[[[", b"[" * 600, b"[" * 3_000, b'"\\ud800"', b'"\\u0000"', b"!!int x", b"&a", b"*a", b"1:1:1"),
)
BYTES = (0x00, 0x01, 0x7F, 0x80, 0xFF, 0x28, 0x29, 0x2E, 0x51, 0x52, 0x63, 0x74, 0x85, 0x8A)
ODD = (
    *(None, True, -1, 0, 3, 1 << 70, -(1 << 70), 0.0, -1.5, math.nan, math.inf, -math.inf),
    *("", "x", "../../x", "torch.int3", "\ud800", "a\0b", "1" * 5_000, "\x1b[2J"),
    *([], {}, [[]], [{}], {"": {}}, {"type": 3}, {"type": "x"}, {"shape": [2]}, {"dtype": "x", "type": "torch.Tensor"}),
    *([-1], [1 << 70, 2], [True], [0], ["2"], {"type": "torch.Tensor", "shape": [2], "Max": math.nan, "Norm": -1}),
    *({"type": "int", "value": []}, {"type": "slice", "value": 1}, {"type": "torch.Tensor", "data_name": "../x"}),
)


COUNTS = (0, 1, 2, 3, 7, -1, -(1 << 63), 1 << 20, 10**9, 10**12, (1 << 63) - 1, 1 << 63, 1 << 70)
SIZES = {
    "value": (
        *COUNTS,
        0.5,
        1e-300,
        1e300,
        math.nan,
        math.inf,
        True,
        "sum",
        "cuda:7",
        "meta",
        "…",
        [1, 2, 3],
        [10**9] * 3,
    ),
    "shape": ([], [0], [1], [2, 2], [10**6, 10**6], [10**12], [1] * 64, [(1 << 63) - 1] * 3, [4, 6], [3, 4], [-1]),
    "stride": ([], [0], [0, 0], [1, 1], [10**9, 1], [1 << 62], [4, 1], [1, 4]),
    **dict.fromkeys(("tensor", "storage", "offset"), (*COUNTS, *range(40))),
    "dtype": ("torch.float32", "torch.float64", "torch.bool", "torch.int64", "torch.complex64", "torch.float8_e4m3fn"),
    "requires_grad": (True, False),
    "type": (
        "torch.Tensor",
        "int",
        "float",
        "bool",
        "str",
        "torch.dtype",
        "torch.device",
        "slice",
        "torch.Size",
        "ellipsis",
    ),
}
NAMES = (
    *("Torch.zeros.0.forward", "Tensor.expand.0.forward", "Tensor.view.0.forward", "Functional.linear.0.forward"),
    *(
        "Torch.matmul.0.forward",
        "Tensor.__getitem__.0.forward",
        "Autograd.FlashAttnFunc.0.forward",
        "Torch.load.0.forward",
    ),
    *(
        "Ops.aten.save.0.forward",
        "Ops.aten.add.Tensor.0.forward",
        "Torch._grouped_mm.0.forward",
        "Torch.empty.0.forward",
    ),
    *(
        "NPU.npu_fusion_attention.0.forward",
        "Tensor.resize_.0.forward",
        "Tensor.copy_.0.forward",
        "Torch.lstm.0.forward",
    ),
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
        is_text = seeds[0].partition(b"\n")[2][:1] == b"{" or seeds[0][:1] == b"{"
        if is_text and not seeds[0].startswith(b"{") and chance.random() < 0.8:
            target(mutate_calls(chance, seeds))
        else:
            target(mutate_json(chance, seeds) if is_text and chance.random() < 0.7 else mutate(chance, seeds))
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
    seed = chance.choice(seeds)
    head, _, rest = seed.partition(b"\n") if not seed.startswith(b"{") else (b"", b"", seed)
    content = json.loads(rest)
    for _ in range(chance.choice((1, 2, 4, 16))):
        node = content
        while isinstance(node, (dict, list)) and node:
            keys = list(node) if isinstance(node, dict) else range(len(node))
            key = chance.choice(keys)
            if chance.random() < 0.15 or not isinstance(node[key], (dict, list)) or not node[key]:
                node[key] = copy.deepcopy(chance.choice(ODD))
                break
            node = node[key]
    return (head + b"\n" if head else b"") + json.dumps(content).encode()


def mutate_calls(chance: random.Random, seeds: list[bytes]) -> bytes:
    """Records that are still records: with other numbers, shapes, strides, links and names."""
    head, _, rest = chance.choice(seeds).partition(b"\n")
    content = json.loads(rest)
    if not isinstance(content.get("data"), dict):
        return head + b"\n" + rest
    records = content["data"]
    for _ in range(chance.choice((1, 4, 16))):
        name = chance.choice(list(records))
        leaves = list(iter_nodes(records[name]))
        if not leaves or chance.random() < 0.1:
            other = chance.choice([*records, *NAMES])
            records[other.rpartition(".forward")[0].rpartition(".")[0] + f".{chance.randrange(9)}.forward"] = records[
                name
            ]
            continue
        leaf = chance.choice(leaves)
        key = chance.choice(list(leaf))
        leaf[key] = copy.deepcopy(chance.choice(SIZES.get(key, ODD)))
    return head + b"\n" + json.dumps(content).encode()


def iter_nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """The tensors and values of a record."""
    if isinstance(tree, dict) and isinstance(tree.get("type"), str):
        yield tree
    elif isinstance(tree, (dict, list)):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from iter_nodes(item)


# The readers.


def read_tensor(folder: Path, content: bytes) -> None:
    from tensorprobe.compare.measure.measure import measure_arrays
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
    from rich.console import Console

    import tensorprobe
    from tensorprobe.report.compare_text import print_comparison

    for side, text in (("reference", dump_seeds()[0]), ("candidate", content)):
        (folder / side).mkdir(exist_ok=True)
        (folder / side / "dump.json").write_bytes(text)
    comparison = tensorprobe.compare(folder / "reference", folder / "candidate", processes=1)
    print_comparison(Console(file=io.StringIO()), comparison)
    assert all(row.status for row in comparison.rows)


def find_truths(folder: Path, content: bytes) -> None:
    """`tensorprobe truth` of a recorded program with these records. The first line says which program and file."""
    from rich.console import Console

    import tensorprobe
    from tensorprobe.report.truth_file import iter_truth_json
    from tensorprobe.report.truth_row import build_truth_rows
    from tensorprobe.report.truth_text import print_truth

    dump = folder / "dump"
    shutil.rmtree(dump, ignore_errors=True)
    name, _, records = content.partition(b"\n")
    program, _, file = name.decode("ascii", "replace").partition(" ")
    if program not in recorded_programs() or file not in ("dump.json", "run.json", "construct.json"):
        return
    shutil.copytree(recorded_programs()[program], dump)
    (dump / "step0" / "rank" / file).write_bytes(records)
    for truth in tensorprobe.truth(dump).runs:
        print_truth(Console(file=io.StringIO()), truth, build_truth_rows(truth))
        assert all(isinstance(piece, str) for piece in iter_truth_json([truth]))


@cache
def recorded_programs() -> dict[str, Path]:
    """The programs of the tests, and some calls whose arguments say how much they give, each recorded once."""
    import torch
    from tests.replay.program import PROGRAMS, make_program, record

    folder = Path(tempfile.mkdtemp())
    model = torch.nn.Linear(4, 4)
    step = functools.partial(call_factories, model)
    programs = {name: make_program(name) for name in PROGRAMS}
    return {name: record(folder / name, *found) for name, found in {**programs, "factory": (model, step)}.items()}


def call_factories(model: Any) -> Any:
    """Calls whose arguments say how much they give."""
    import torch
    import torch.nn.functional as F

    x = model(torch.ones(3, 4))
    x = x + torch.zeros(3, 4) + torch.arange(4.0) + torch.eye(4)[:3] + torch.full((3, 4), 2.0)
    x = F.pad(x, (1, 1)).unfold(1, 2, 2).sum(-1).repeat(1, 2) + torch.linspace(0, 1, 6)
    x = x + F.one_hot(torch.tensor([0, 1, 5]), 6) + torch.bincount(torch.tensor([5]), minlength=6)
    x = x.repeat_interleave(2, 0).expand(2, 6, 6).contiguous() + torch.empty(6).fill_(1)
    x = torch.einsum("bij,bjk->bik", x, x) + torch.cdist(x, x) + torch.matrix_power(x, 2).tanh()
    x = F.interpolate(x, scale_factor=2.0) + F.conv1d(x, torch.ones(6, 6, 1), padding=3)[:, :, :12]
    x = (
        F.max_pool1d(x, 3, padding=1, stride=1).as_strided((2, 4), (1, 2))
        + torch.cartesian_prod(*[torch.ones(2)] * 2)[:2, :1]
    )
    return torch.ops.aten.mul(x.cumsum(0), torch.ones(2, 4)).sum()


def truth_seeds() -> list[bytes]:
    return [
        f"{name} {file}\n".encode() + (folder / "step0" / "rank" / file).read_bytes()
        for name, folder in recorded_programs().items()
        for file in ("dump.json", "dump.json", "dump.json", "run.json", "construct.json")
    ]


def read_names(folder: Path, content: bytes) -> None:
    from tensorprobe.compare.match.mapping import read_mapping

    path = folder / "mapping.yaml"
    path.write_bytes(content)
    read_mapping(path)


def read_apis(folder: Path, content: bytes) -> None:
    from tensorprobe.config import load_api_list

    path = folder / "apis.yaml"
    path.write_bytes(content)
    load_api_list(path)


def read_config(folder: Path, content: bytes) -> None:
    from tensorprobe.config import load_config

    path = folder / "config.json"
    path.write_bytes(content)
    load_config(path)


def read_weights(folder: Path, content: bytes) -> None:
    from tensorprobe.store.weight_file import read_weight_file

    path = folder / "x.safetensors"
    path.write_bytes(content)
    for stored in read_weight_file(path):
        stored.read()
        assert len(stored.weight.shape) <= 32
        stored.weight.name.encode()


def convert_printed(folder: Path, content: bytes) -> None:
    from tensorprobe.widget.convert import convert

    path = folder / "printed"
    path.write_bytes(content)
    try:
        convert(path, folder / "out")
    finally:
        shutil.rmtree(folder / "out", ignore_errors=True)


def recover_beside(name: str) -> Callable[[Path, bytes], None]:
    """`show` and `recover` of a killed run with this file; what is refused is left as it was."""

    def read(folder: Path, content: bytes) -> None:
        from tensorprobe.errors import TensorprobeError
        from tensorprobe.report.rank import build_rank_report
        from tensorprobe.store.reader import open_dump
        from tensorprobe.store.recover import recover_dump

        shutil.rmtree(folder / "rank", ignore_errors=True)
        (folder / "rank").mkdir()
        record = b'{"task": "tensor", "data": {\n"Torch.sin.0.forward": {"input_args": [], "output": []},\n'
        (folder / "rank" / "dump.json.part").write_bytes(record)
        (folder / "rank" / name).write_bytes(content)
        before = {path.name: path.read_bytes() for path in (folder / "rank").iterdir()}
        build_rank_report(next(open_dump(folder / "rank").ranks()))
        try:
            recover_dump(folder / "rank", force=True)
        except TensorprobeError:
            assert before == {path.name: path.read_bytes() for path in (folder / "rank").iterdir()}
            raise
        assert not list((folder / "rank").glob("*.part"))

    return read


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


def weight_seeds() -> list[bytes]:
    from tests.store.torch_archive import tensor_pickle, text, write_archive

    seeds = []
    entries = {"a.weight": ([2, 3], [0, 24]), "a.bias": ([3], [24, 36]), "n": ([], [36, 40])}
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": at} for name, (shape, at) in entries.items()}
    encoded = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    seeds.append(len(encoded).to_bytes(8, "little") + encoded + bytes(40))
    with tempfile.TemporaryDirectory() as name:
        inner = b"".join(text(f"w{n}") + tensor_pickle((2, n), (n, 1))[2:-1] for n in range(1, 4))
        for pickled in (
            b"}(" + inner + b"u",
            b"}q\x01(" + text("model") + b"}(" + inner + b"u" + text("x") + b"h\x01u",
        ):
            seeds.append(write_archive(Path(name) / "x.pt", b"\x80\x02" + pickled + b".", bytes(24)).read_bytes())
    return seeds


def print_seeds() -> list[bytes]:
    from tests.store.print_bytes import array_value, tensor_value, text_value

    mark = text_value("_TS_SAVE_NAME:add")
    printed = "_TS_SAVE_NAME:x\nTensor(shape=[2, 2], dtype=Float32, value=\n[[1 2]\n [3 4]])"
    packed = tensor_value("Int32", (1, 2), bytes(8), is_packed=True)
    return [mark + array_value(np.zeros((2, 3), np.float32)), text_value(printed), mark + packed]


def stack_seeds() -> list[bytes]:
    lines = ['["stack", 0, ["File a.py, line 1, in f, \\n x"]]', '["call", 0, "Torch.sin.0.forward"]']
    return ["\n".join([*lines, *lines, ""]).encode()]


def run_seeds() -> list[bytes]:
    coverage = {"seen": 1, "recorded": 1, "failed": 0, "unseen": {"x": 1}}
    return [json.dumps({"pid": 1, "host": "x", "versions": {"torch": "2"}, "coverage": coverage}).encode()]


def config_seeds() -> list[bytes]:
    section = {"scope": [], "list": ["relu"], "data_mode": ["all"], "summary_mode": "md5"}
    return [
        json.dumps({"task": "statistics", "rank": [0, "2-4"], "step": 3, "level": "L1", "statistics": section}).encode()
    ]


def api_seeds() -> list[bytes]:
    return [
        b"functional: [conv1d, conv2d]\ntensor: {remove: [view]}\n",
        b"torch:\n  add:\n    - size\n  remove: [abs]\n",
    ]


TARGETS: dict[str, Callable[[Path, bytes], None]] = {
    "records": read_records,
    "npy": read_tensor,
    "pt": read_tensor,
    "weights": read_weights,
    "print": convert_printed,
    "stacks": recover_beside("stack.json.part"),
    "run": recover_beside("run.json"),
    "config": read_config,
    "apis": read_apis,
    "mapping": read_names,
    "compare": compare_dumps,
    "truth": find_truths,
}
SEEDS = {
    "records": dump_seeds,
    "npy": npy_seeds,
    "pt": tensor_seeds,
    "weights": weight_seeds,
    "print": print_seeds,
    "stacks": stack_seeds,
    "run": run_seeds,
    "config": config_seeds,
    "apis": api_seeds,
    "mapping": mapping_seeds,
    "compare": dump_seeds,
    "truth": truth_seeds,
}

if __name__ == "__main__":
    main()
