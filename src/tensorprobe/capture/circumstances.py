"""run.json: under which circumstances a run was made. Two runs that differ here may differ in their numbers for no
other reason."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

import numpy as np

from tensorprobe._version import __version__
from tensorprobe.capture import native
from tensorprobe.store.run_place import describe_process

# Variables that change numbers, or which device and algorithm computes them. Others are not written: they may hold
# secrets.
_VARIABLES = (
    "CUBLAS_WORKSPACE_CONFIG",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_VISIBLE_DEVICES",
    "ASCEND_RT_VISIBLE_DEVICES",
    "ASCEND_LAUNCH_BLOCKING",
    "HCCL_DETERMINISTIC",
    "LCCL_DETERMINISTIC",
    "ATB_MATMUL_SHUFFLE_K_ENABLE",
    "ATB_LLM_LCOC_ENABLE",
    "MKL_NUM_THREADS",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "PYTHONHASHSEED",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "LOCAL_RANK",
    "RANK",
    "WORLD_SIZE",
)


def describe_circumstances(framework: str, details: dict[str, Any]) -> dict[str, Any]:
    """What does not change while the process runs."""
    return {
        "tensorprobe": __version__,
        "framework": framework,
        "reduced_by": "compiled code" if native.is_compiled() else "numpy and torch",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "platform": platform.platform(),
            **details.get("versions", {}),
        },
        "devices": details.get("devices", []),
        "command": list(getattr(sys, "orig_argv", sys.argv)),
        "settings": details.get("settings", {}),
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        **describe_process(),
    }
