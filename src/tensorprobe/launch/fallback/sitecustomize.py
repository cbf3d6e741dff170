"""In the place of tensorprobe.pth, where that is not installed: Python imports this when it starts, because
`tensorprobe run` has put its folder on PYTHONPATH. The program finds its path as it was, and a sitecustomize of its
own is run.

Any Python that the program starts may come here, also one without tensorprobe.
"""

import importlib
import os
import sys

_FOLDER = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120  pathlib would be imported early

sys.path[:] = [path for path in sys.path if os.path.abspath(path) != _FOLDER]  # noqa: PTH100
try:
    importlib.import_module("tensorprobe_start").start()
except Exception as error:
    sys.stderr.write("[tensorprobe] this program is not recorded: %s\n" % error)  # noqa: UP031  any Python
own = sys.modules.pop("sitecustomize", None)
try:
    importlib.import_module("sitecustomize")
except ImportError:
    if own is not None:
        sys.modules["sitecustomize"] = own
