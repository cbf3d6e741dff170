"""The file that `tensorprobe init` writes: every key with its default and what it does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tensorprobe.config.capture_config import TASKS, CaptureConfig
from tensorprobe.config.known_key import COMMON_READERS, SECTION_READERS
from tensorprobe.errors import UsageError

FACES = {"pytorch": "tensorprobe.pytorch", "mindspore": "tensorprobe.mindspore"}

EXPLANATIONS: dict[str, str] = {
    "task": """What is kept of a tensor.
statistics: max, min, mean, norm. tensor: these and the tensor, which takes most disk and time.
replay: statistics, and the tensors that cannot be computed again. structure: which calls there were, no values.""",
    "dump_path": "The folder of the dump; it is made. A relative path starts at the working directory.",
    "rank": 'The ranks that record: numbers and ranges, such as [0, "4-6"]. Empty: all.',
    "step": 'The steps that are recorded, counted from 0: [0, "10-12"], "0-1000:100" or "every 100". Empty: all.',
    "level": """What is recorded. L0: modules. L1: API calls. mix: both. debug: only what save() is given.
A record of a small tensor costs about 0.3 ms, with task tensor 1.5 ms: 1,000 calls add 0.3 s, or 1.5 s, to a step.
Begin with few steps, or L0.""",
    "async_dump": "true: write files in the background.",
    "extra_info": "false: no stack.json and no construct.json, so no source lines.",
    "api_yaml": "A YAML file that says which APIs are recorded; null: all that compute something.",
    "on_nonfinite": """What to do at the first NaN or Inf. tensors: store the tensors of that call and go on.
stop: store them, then raise. null: nothing.""",
    "max_disk": 'How much one process may write, such as "50GB"; null: as much as min_free allows.',
    "min_free": 'How much stays free on the disk, such as "5GB"; null: 1 GB, or 2 % of a small disk; 0: nothing.',
    "flight_recorder": """How many of the last steps stay on disk, such as 5; null: all.
They are kept for good when NaN, a loss spike or the signal SIGUSR1 comes.""",
    "tensorboard": "A folder for TensorBoard: norms of activations and gradients of each module. null: none.",
    "compiled": """boundary: a function of torch.compile is one record.
eager: it runs as it was written while it is recorded, so that all calls inside are seen.""",
    "scope": "Empty, or two names from dump.json: the first and the last call to record.",
    "list": 'Parts of names: only calls that contain one, such as ["relu", "Module.layers.0."]. Empty: all.',
    "data_mode": "all, or some of forward, backward, input, output.",
    "summary_mode": "statistics, or md5 or hash: a checksum besides, to tell equal bits from others.",
    "tensor_list": "Task statistics only: parts of the names of calls whose tensors are stored too.",
}

_HEAD = """\
# The configuration of tensorprobe. Every key is here with its default; what you delete keeps it.
#
#     from {face} import PrecisionDebugger
#     debugger = PrecisionDebugger("{name}")
#     debugger.start({model})   # before the forward of a step
#     ...                    # forward and backward
#     debugger.stop()
#     debugger.step()
"""


def write_template(path: Path, framework: str = "pytorch", *, overwrites: bool = False) -> None:
    """Write the commented configuration; a file that exists stays as it is unless `overwrites` is given."""
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"{path} does not end in .yaml: the file has comments, which JSON has not. Try config.yaml")
    try:
        with path.open("w" if overwrites else "x", encoding="utf-8") as file:
            file.write(format_template(path.name, framework))
    except FileExistsError:
        raise UsageError(f"{path} exists and was left as it is. Give another name, or --force to replace it") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}). Give a file in a folder that exists") from None


def format_template(name: str, framework: str) -> str:
    """The text of the file."""
    lines = [_HEAD.format(face=FACES[framework], name=name, model="net" if framework == "mindspore" else "model")]
    for key in COMMON_READERS:
        lines += [*_explain(key, ""), _spell(key), ""]
    lines.append("# Options of the task. Only the section of the chosen task is used:")
    lines.append(f"# {', '.join(TASKS)} take the same keys.\n")
    lines.append(f"{CaptureConfig().task}:")
    for key in SECTION_READERS:
        lines += [*_explain(key, "  "), f"  {_spell(key)}"]
    return "\n".join(lines) + "\n"


def _explain(key: str, indent: str) -> Iterator[str]:
    for line in EXPLANATIONS.get(key, "See docs/config.md.").splitlines():
        yield f"{indent}# {line}"


def _spell(key: str) -> str:
    """As YAML, of which JSON is a part."""
    value: Any = getattr(CaptureConfig(), key)
    if isinstance(value, (tuple, frozenset)):
        value = sorted(value) or (["all"] if key == "data_mode" else [])
    elif isinstance(value, Path):
        value = f"./{value}"
    return f"{key}: {json.dumps(value)}"
