"""Functions that torch has under the same name, with the same arguments in the same order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import METHOD, MINT, MINT_F, OPS, add, means

_EVERYWHERE = ("addcdiv", "addcmul", "erfinv", "fmod", "log10", "log2", "logical_xor", "nan_to_num", "xlogy")
_IN_MINT = (
    *("addbmm", "addmm", "addmv", "argmax", "argmin", "baddbmm", "bitwise_and", "bitwise_or", "bitwise_xor", "cross"),
    *("diag", "dot", "exp2", "frac", "inverse", "logaddexp", "logaddexp2", "mv", "outer", "scatter_add", "select"),
    *("sinc", "std", "trace", "var"),
)
_IN_OPS = (
    *("addbmm", "addmv", "cross", "dist", "exp2", "hypot", "inverse", "logaddexp", "logaddexp2", "mv", "sinc", "trace"),
)
_IN_MINT_FUNCTIONAL = (
    *("adaptive_avg_pool1d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose2d", "fold", "interpolate", "kl_div", "max_pool2d", "smooth_l1_loss", "softplus", "unfold"),
)

for _names, _prefix, _owner in (
    (_EVERYWHERE, MINT, torch),
    (_IN_MINT, MINT, torch),
    (_EVERYWHERE, OPS, torch),
    (_IN_OPS, OPS, torch),
    (_EVERYWHERE, METHOD, torch),
    (_IN_MINT_FUNCTIONAL, MINT_F, F),
):
    for _name in _names:
        if (_prefix, _name) not in ((OPS, "addcdiv"), (OPS, "addcmul"), (METHOD, "addcmul"), (METHOD, "addcdiv")):
            add(_prefix, _name, getattr(_owner, _name))


@means("addcdiv", OPS, METHOD)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return input + value * tensor1 / tensor2


@means("addcmul", OPS, METHOD)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return input + value * tensor1 * tensor2
