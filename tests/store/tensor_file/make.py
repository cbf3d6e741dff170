"""Makes the files in this folder again, with the real torch:

    python tests/store/tensor_file/make.py

`expected.json` holds what torch itself reads from each: dtype, shape, values in row-major order (of complex numbers
both parts); for tensors that are no plain arrays, a word that the refusal must contain.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch

FOLDER = Path(__file__).resolve().parent
FLOATS = ("float64", "float32", "float16", "bfloat16")
FLOATS_8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")


def dense_tensors() -> dict[str, torch.Tensor]:
    """Every dtype, and every way in which a tensor can lie in its storage."""
    values = torch.tensor([[0.5, -1.5, 3.0], [-0.0, 0.25, -448.0]], dtype=torch.float64)
    tensors = {name: values.to(getattr(torch, name)) for name in (*FLOATS, *FLOATS_8)}
    for name in INTEGERS:
        dtype = getattr(torch, name)
        limits = torch.iinfo(dtype)
        tensors[name] = torch.tensor([limits.min, 0, 1, limits.max], dtype=dtype)
    tensors["bool"] = torch.tensor([True, False, True])
    pairs = torch.complex(values, values.flip(0))
    tensors["complex128"] = pairs
    tensors["complex64"] = pairs.to(torch.complex64)
    tensors["complex32"] = pairs.to(torch.complex32)
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    tensors["parameter"] = torch.nn.Parameter(base[0].clone())
    tensors["with-attribute"] = base[1].clone()
    tensors["with-attribute"].note = "kept beside it"
    tensors["conjugated"] = pairs.to(torch.complex64).conj()
    tensors["negated"] = pairs.to(torch.complex64).conj().imag
    tensors["scalar"] = torch.tensor(2.5)
    tensors["empty"] = torch.empty(0, 3)
    tensors["transposed"] = base.permute(2, 0, 1)
    tensors["with-gaps"] = base[:, ::2, 1:]
    tensors["repeated"] = torch.tensor([[1.0], [2.0]]).expand(2, 5)
    tensors["nonfinite"] = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0])
    return tensors


def other_tensors() -> dict[str, tuple[Any, str]]:
    """What is no plain array, and the word for it."""
    values = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    return {
        "sparse-coo": (values.to_sparse(), "sparse"),
        "sparse-csr": (values.to_sparse_csr(), "sparse"),
        "quantized": (torch.quantize_per_tensor(values, 0.1, 0, torch.qint8), "quantized"),
        "meta": (torch.ones(3, device="meta"), "meta tensor"),
        "list": ([values], "pickle"),
    }


def plain_values(tensor: torch.Tensor) -> list[Any]:
    """As JSON can hold them without loss."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype.is_complex:
        tensor = torch.view_as_real(tensor.to(torch.complex128))
    elif tensor.dtype.is_floating_point:
        tensor = tensor.to(torch.float64)
    return tensor.flatten().tolist()


def main() -> None:
    """Write all files and what is expected of them."""
    warnings.simplefilter("ignore")
    expected: dict[str, Any] = {}
    for name, tensor in dense_tensors().items():
        torch.save(tensor, FOLDER / f"{name}.pt")
        dtype = str(tensor.dtype).removeprefix("torch.")
        expected[f"{name}.pt"] = {"dtype": dtype, "shape": list(tensor.shape), "values": plain_values(tensor)}
    for name, (value, word) in other_tensors().items():
        torch.save(value, FOLDER / f"{name}.pt")
        expected[f"{name}.pt"] = {"refused": word}
    torch.save(torch.ones(3), FOLDER / "before-1.6.pt", _use_new_zipfile_serialization=False)
    expected["before-1.6.pt"] = {"refused": "before 1.6"}
    lines = (f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in expected.items())
    (FOLDER / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
