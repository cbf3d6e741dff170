"""Functions that torch has under the same name, with the same arguments in the same order."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensorprobe.replay.meaning.mindspore.table import METHOD, MINT, MINT_F, OPS, PRIMITIVE, add, means

_EVERYWHERE = (
    *(
        "addcdiv",
        "addcmul",
        "diff",
        "erfinv",
        "fmod",
        "log10",
        "log2",
        "logical_xor",
        "nan_to_num",
        "nansum",
        "nonzero",
    ),
    *("real", "xlogy"),
)
_IN_MINT = (
    *("addbmm", "addmm", "addmv", "argmax", "argmin", "baddbmm", "bitwise_and", "bitwise_or", "bitwise_xor", "cdist"),
    *("cross", "diag", "dot", "dstack", "exp2", "float_power", "frac", "gcd", "hstack", "inverse", "isinf", "isnan"),
    *("logaddexp", "logaddexp2", "mv", "outer", "polar", "scatter_add", "select", "sinc", "std", "trace"),
    *("unique_consecutive", "var"),
)
_IN_OPS_AND_METHODS = (
    *("addbmm", "addmv", "argwhere", "bitwise_and", "bitwise_or", "bitwise_xor", "copysign", "cov", "cross", "deg2rad"),
    *("det", "diagonal", "digamma", "fliplr", "flipud", "fmax", "frac", "ger", "hypot", "i0"),
    *("inner", "inverse", "isneginf", "isposinf", "isreal", "ldexp", "lgamma", "logaddexp", "logcumsumexp", "logdet"),
    *("logit", "matrix_power", "nanmean", "rad2deg", "renorm", "rot90", "sinc", "slogdet"),
    *("unique_consecutive",),
)
_IN_OPS = (
    *("block_diag", "cartesian_prod", "cdist", "column_stack", "combinations", "diag_embed", "dist", "dstack", "exp2"),
    *("float_power", "gcd", "hstack", "kron", "logaddexp2", "mv", "polar", "trace", "view_as_real"),
)
_IN_METHODS = ("masked_scatter", "select")
_IN_MINT_FUNCTIONAL = (
    *("adaptive_avg_pool1d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "conv1d", "conv2d", "conv3d"),
    *("conv_transpose2d", "fold", "grid_sample", "interpolate", "kl_div", "max_pool2d", "pixel_shuffle"),
    *("smooth_l1_loss", "softplus", "unfold"),
)
_IN_OPS_OF_LAYERS = (
    *("affine_grid", "channel_shuffle", "grid_sample", "pdist", "pixel_shuffle", "pixel_unshuffle", "tanhshrink"),
)
_OTHER_NAMES = ("arccos", "arccosh", "arcsin", "arcsinh", "arctan", "arctan2", "arctanh")

for _names, _prefix, _owner in (
    (_EVERYWHERE, MINT, torch),
    (_IN_MINT, MINT, torch),
    (("arctanh",), MINT, torch),
    (_EVERYWHERE, OPS, torch),
    (_IN_OPS, OPS, torch),
    (_IN_OPS_AND_METHODS, OPS, torch),
    (_IN_OPS_OF_LAYERS, OPS, F),
    (_OTHER_NAMES, OPS, torch),
    (_EVERYWHERE, METHOD, torch),
    (_IN_METHODS, METHOD, torch),
    (_IN_OPS_AND_METHODS, METHOD, torch),
    (_OTHER_NAMES, METHOD, torch),
    (_IN_MINT_FUNCTIONAL, MINT_F, F),
):
    for _name in _names:
        if (_prefix, _name) not in ((OPS, "addcdiv"), (OPS, "addcmul"), (METHOD, "addcmul"), (METHOD, "addcdiv")):
            add(_prefix, _name, getattr(_owner, _name))
for _class, _function in (
    ("Cdist", torch.cdist),
    ("Erfinv", torch.erfinv),
    ("MaskedSelect", torch.masked_select),
    ("NonZero", torch.nonzero),
):
    add(PRIMITIVE, _class, _function)


@means("addcdiv", OPS, METHOD)
def addcdiv(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return input + value * tensor1 / tensor2


@means("addcmul", OPS, METHOD)
def addcmul(input: Tensor, tensor1: Tensor, tensor2: Tensor, value: Any = 1) -> Tensor:
    return input + value * tensor1 * tensor2
