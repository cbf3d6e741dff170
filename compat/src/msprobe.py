"""`msprobe`: `msprobe.pytorch` and `msprobe.mindspore` are the faces of tensorprobe.

Each is imported only when it is asked for, because it imports its framework.
"""

from pathlib import Path

import tensorprobe_compat
from tensorprobe_compat.original import refuse_beside_original

refuse_beside_original(__name__)

# What makes a package of a module: where to look for `msprobe.pytorch`.
__path__ = [str(Path(tensorprobe_compat.__file__).parent / "msprobe")]
