"""Names of dtypes: PyTorch writes `torch.float32`, MindSpore `Float32`, numpy `<class 'numpy.float32'>`."""

from __future__ import annotations

from functools import cache

_WITHOUT_UNDERSCORE = {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2"}


@cache
def short_dtype(dtype: str | None) -> str:
    """`float32`, from any framework's spelling.

    >>> short_dtype("torch.float32"), short_dtype("BFloat16"), short_dtype("Float8E4M3FN")
    ('float32', 'bfloat16', 'float8_e4m3fn')
    """
    if dtype is None:
        return ""
    name = dtype.rpartition(".")[2].strip("'>").lower()
    return _WITHOUT_UNDERSCORE.get(name, name)
