"""What layers, losses and recurrent calls are called with: see meaning_case.py."""

from __future__ import annotations

import numpy as np

from tests.both.meaning_case import (
    IMAGE,
    LABELS,
    OTHER,
    SERIES,
    UNIT,
    VOLUME,
    WIDE,
    Case,
    Cases,
    X,
    Y,
    call,
    made,
    normal,
    positive,
)

_SAME = {"pad_mode": "same"}
_PADDED = {"pad_mode": "pad"}
_ONE_HOT = np.eye(4, dtype=np.float32)[LABELS]
_NAMES = ("mean", "sum", "none")
SIGNS = np.sign(normal(3, 4)).astype(np.float32)


def _reductions(*args: np.ndarray, **kwargs: object) -> list[Case]:
    return [call(*args, reduction=reduction, **kwargs) for reduction in _NAMES]


def _recurrent(inputs: int, width: int, has_bias: bool) -> Case:
    gates = 4 * width
    count = gates * (inputs + width + has_bias)
    arguments = normal(5, 2, inputs), normal(1, 2, width), normal(1, 2, width), normal(count, 1, 1)
    settings = {"input_size": inputs, "hidden_size": width, "num_layers": 1, "has_bias": has_bias}
    return made(*arguments, **settings, bidirectional=False, dropout=0.0)


LAYER: Cases = {
    "conv1d": [
        call(SERIES, normal(6, 1, 3), normal(6), 2, dilation=2, groups=3),
        call(SERIES, normal(4, 3, 3), pad_mode="same"),
    ],
    "conv2d": [
        call(IMAGE, normal(6, 1, 3, 3), normal(6), 2, dilation=2, groups=3),
        call(IMAGE, normal(4, 3, 3, 3), pad_mode="pad", padding=1),
        call(WIDE, normal(4, 4, 3, 2), pad_mode="same", stride=(2, 3)),
    ],
    "conv3d": [call(VOLUME, normal(4, 3, 3, 3, 3), normal(4), 2), call(VOLUME, normal(4, 3, 3, 3, 3), pad_mode="same")],
    "Conv2D": [
        made(IMAGE, normal(6, 1, 3, 3), out_channel=6, kernel_size=3, stride=2, dilation=2, group=3),
        made(IMAGE, normal(4, 3, 3, 3), out_channel=4, kernel_size=3, pad=1, **_PADDED),
        made(IMAGE, normal(4, 3, 3, 3), out_channel=4, kernel_size=3, pad=(0, 1, 2, 1), **_PADDED),
        made(WIDE, normal(4, 4, 3, 2), out_channel=4, kernel_size=(3, 2), stride=(2, 3), **_SAME),
        made(WIDE, normal(4, 4, 4, 4), out_channel=4, kernel_size=4, stride=1, **_SAME),
    ],
    "Conv3D": [
        made(VOLUME, normal(4, 3, 3, 3, 3), out_channel=4, kernel_size=3, stride=2),
        made(VOLUME, normal(4, 3, 3, 3, 3), out_channel=4, kernel_size=3, **_SAME),
    ],
    "Conv2DTranspose": [
        made(normal(2, 4, 3, 3), normal(4, 3, 3, 3), (2, 3, 7, 7), out_channel=4, kernel_size=3, stride=2),
        made(normal(2, 4, 4, 4), normal(4, 3, 3, 3), (2, 3, 8, 8), out_channel=4, kernel_size=3, stride=2, **_SAME),
        made(normal(2, 4, 6, 6), normal(4, 3, 3, 3), (2, 3, 6, 6), out_channel=4, kernel_size=3, pad=1, **_PADDED),
    ],
    "MaxPool": [
        made(IMAGE, kernel_size=3, strides=2),
        made(WIDE, kernel_size=(2, 3), strides=(2, 2), **_SAME),
    ],
    "MaxPool3D": [made(VOLUME, kernel_size=3, strides=2), made(VOLUME, kernel_size=3, strides=1, **_SAME)],
    "AvgPool": [
        made(IMAGE, kernel_size=3, strides=2),
        made(WIDE, kernel_size=(2, 3), strides=(2, 2), **_SAME),
    ],
    "AvgPool3D": [
        made(VOLUME, kernel_size=3, strides=2),
        made(VOLUME, kernel_size=3, strides=1, pad=1, **_PADDED),
        made(VOLUME, kernel_size=3, strides=1, pad=1, count_include_pad=False, **_PADDED),
        made(VOLUME, kernel_size=2, strides=2, divisor_override=5),
    ],
    "max_pool2d": [call(IMAGE, 3, 2), call(IMAGE, 2, 2, 1), call(IMAGE, 3, 2, ceil_mode=True)],
    "avg_pool2d": [
        call(IMAGE, 3, 2),
        call(IMAGE, 3, 2, 1, count_include_pad=False),
        call(IMAGE, 3, 2, 1, True),
        call(IMAGE, 2, 2, divisor_override=3),
    ],
    "avg_pool1d": [call(SERIES, 3, 2), call(SERIES, 3, 2, 1, count_include_pad=False)],
    "adaptive_avg_pool2d": [call(IMAGE, (4, 2)), call(IMAGE, 4)],
    "AdaptiveAvgPool2D": [made(IMAGE, output_size=(4, 2))],
    "adaptive_avg_pool1d": [call(SERIES, 4), call(SERIES, 2)],
    "LayerNorm": [
        made(normal(2, 3, 4), normal(4), normal(4), begin_norm_axis=-1, begin_params_axis=-1),
        made(normal(2, 3, 4), normal(3, 4), normal(3, 4), begin_norm_axis=1, begin_params_axis=1, epsilon=1e-2),
    ],
    "layer_norm": [call(X, (4,), normal(4), normal(4)), call(X, (4,), normal(4), normal(4), 1e-2)],
    "group_norm": [call(WIDE, 2, normal(4), normal(4)), call(WIDE, 4, normal(4), normal(4), 1e-2)],
    "BatchNorm": [
        made(IMAGE, normal(3), normal(3), normal(3), positive(3), is_training=False, epsilon=1e-3),
        made(IMAGE, normal(3), normal(3), normal(3), positive(3), is_training=True, epsilon=1e-5, momentum=0.1),
        made(IMAGE, normal(3), normal(3), normal(3), positive(3), is_training=True, epsilon=1e-2, momentum=0.7),
    ],
    "batch_norm": [
        call(IMAGE, normal(3), positive(3), normal(3), normal(3)),
        call(IMAGE, normal(3), positive(3), normal(3), normal(3), False, 0.3, 1e-2),
    ],
    "dropout": [call(X, 0.5, True), call(X, 0.3, False)],
    "Dropout": [made(X, keep_prob=0.6, Seed0=1, Seed1=2), made(X, keep_prob=1.0)],
    "pad": [
        call(IMAGE, (1, 2, 0, 1)),
        call(IMAGE, (1, 2, 0, 1), "constant", 2.0),
        call(IMAGE, (1, 2, 0, 1), "reflect"),
    ],
    "Pad": [made(X, paddings=((1, 2), (0, 1)))],
    "MirrorPad": [
        made(X, np.array([[1, 2], [0, 1]], np.int32)),
        made(X, np.array([[1, 2], [0, 1]], np.int32), mode="SYMMETRIC"),
    ],
    "interpolate": [
        call(IMAGE, (4, 4), None, "bilinear", True),
        call(IMAGE, (12, 12), None, "bilinear", False),
        call(IMAGE, (4, 12)),
    ],
    "ResizeBilinearV2": [
        made(IMAGE, (4, 12), align_corners=True),
        made(IMAGE, (4, 12), half_pixel_centers=True),
    ],
    "ResizeNearestNeighborV2": [made(IMAGE, (4, 12)), made(IMAGE, (16, 16))],
    "LSTM": [_recurrent(3, 4, has_bias=True), _recurrent(4, 2, has_bias=False)],
}

LOSS: Cases = {
    "cross_entropy": [
        call(X, LABELS),
        *_reductions(X, LABELS, label_smoothing=0.2),
        call(X, LABELS, positive(4), 1, "sum"),
        call(X, LABELS, positive(4), 1, "mean"),
        call(X, UNIT),
    ],
    "MintFunctional.cross_entropy": [
        call(X, LABELS),
        *_reductions(X, LABELS, label_smoothing=0.2),
        call(X, LABELS, weight=positive(4), ignore_index=1, reduction="sum"),
        call(X, UNIT),
    ],
    "nll_loss": [call(X, LABELS), *_reductions(X, LABELS, weight=positive(4)), call(X, LABELS, ignore_index=1)],
    "NLLLoss": [
        made(X, LABELS, positive(4), reduction="sum"),
        made(X, LABELS, positive(4), reduction="mean", ignore_index=1),
    ],
    **{name: [call(X, Y), *_reductions(X, Y)] for name in ("mse_loss", "l1_loss")},
    "smooth_l1_loss": [call(X, Y), call(X, Y, 0.5, "sum")],
    "SmoothL1Loss": [made(X, Y), made(X, Y, beta=0.5, reduction="sum")],
    "huber_loss": [call(X, Y), call(X, Y, "sum", 0.5)],
    "kl_div": [call(np.log(UNIT), OTHER), *_reductions(np.log(UNIT), OTHER)],
    "KLDivLoss": [made(np.log(UNIT), OTHER, reduction="sum"), made(np.log(UNIT), OTHER, reduction="mean")],
    "binary_cross_entropy": [call(UNIT, OTHER), *_reductions(UNIT, OTHER, weight=UNIT.copy())],
    "BinaryCrossEntropy": [
        made(UNIT, OTHER, UNIT.copy(), reduction="sum"),
        made(UNIT, OTHER, UNIT.copy(), reduction="mean"),
    ],
    "binary_cross_entropy_with_logits": [
        call(X, OTHER, UNIT, OTHER.copy(), reduction="sum"),
        call(X, OTHER, UNIT, OTHER.copy(), reduction="mean"),
    ],
    "MintFunctional.binary_cross_entropy_with_logits": [
        call(X, OTHER),
        call(X, OTHER, UNIT, "sum", OTHER.copy()),
    ],
    "BCEWithLogitsLoss": [
        made(X, OTHER, UNIT, OTHER.copy(), reduction="sum"),
        made(X, OTHER, UNIT, OTHER.copy(), reduction="mean"),
    ],
    "SigmoidCrossEntropyWithLogits": [call(X, OTHER)],
    "SoftmaxCrossEntropyWithLogits": [call(X, _ONE_HOT)],
    "SparseSoftmaxCrossEntropyWithLogits": [call(X, LABELS)],
    "cosine_embedding_loss": [
        call(X, Y, SIGNS[:, 0].copy()),
        call(X, Y, SIGNS[:, 0].copy(), 0.3, "sum"),
    ],
    "margin_ranking_loss": [call(X, Y, SIGNS), call(X, Y, SIGNS, 0.3, "sum")],
}

_SQUARE = normal(3, 3)
_DEFINITE = (_SQUARE @ _SQUARE.T + 3 * np.eye(3)).astype(np.float32)
_INDEX = np.array([[0, 1], [2, 3], [1, 0]], np.int64)

NAMED: Cases = {
    **{name: [call(UNIT)] for name in ("erfinv", "log10", "log2")},
    **{name: [call(X)] for name in ("exp2", "frac", "sinc", "trace")},
    **{name: [call(UNIT, OTHER)] for name in ("fmod", "hypot", "logaddexp", "logaddexp2", "xlogy", "dist")},
    **{name: [call(X, Y, UNIT), call(X, Y, UNIT, value=2)] for name in ("addcdiv", "addcmul")},
    "logical_xor": [call(X > 0, Y > 0)],
    "nan_to_num": [call(np.array([1, np.nan, np.inf, -np.inf], np.float32), 2.0, 3.0, 4.0)],
    "addbmm": [
        call(X, normal(2, 3, 5), normal(2, 5, 4)),
        call(X, normal(2, 3, 5), normal(2, 5, 4), beta=2, alpha=3),
    ],
    "addmv": [call(normal(3), X, normal(4)), call(normal(3), X, normal(4), beta=2, alpha=3)],
    **{name: [call(X), call(X, 1, True)] for name in ("Mint.argmax", "Mint.argmin")},
    **{
        name: [call(np.array([5, 3, 6], np.int32), np.array([1, 2, 4], np.int32))]
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    },
    "cross": [call(normal(4, 3), normal(4, 3), 1), call(normal(3, 4), normal(3, 4), dim=0)],
    "diag": [call(normal(4)), call(X, 1)],
    "dot": [call(normal(4), normal(4))],
    "inverse": [call(_DEFINITE)],
    "mv": [call(X, normal(4))],
    "Mint.scatter_add": [call(X, 1, _INDEX, normal(3, 2))],
    "Mint.select": [call(X, 1, 2)],
    **{f"Mint.{name}": [call(X), call(X, 1), call(X, 1, correction=0, keepdim=True)] for name in ("std", "var")},
    "MintFunctional.avg_pool1d": [call(SERIES, 3, 2), call(SERIES, 3, 2, 1, count_include_pad=False)],
    "MintFunctional.avg_pool2d": [call(IMAGE, 3, 2), call(IMAGE, 3, 2, 1, count_include_pad=False)],
    "avg_pool3d": [call(VOLUME, 3, 2), call(VOLUME, 3, 2, 1)],
    "MintFunctional.conv1d": [call(SERIES, normal(6, 1, 3), normal(6), 2, 1, 2, 3)],
    "MintFunctional.conv2d": [call(IMAGE, normal(6, 1, 3, 3), normal(6), 2, 1, 2, 3)],
    "MintFunctional.conv3d": [call(VOLUME, normal(4, 3, 3, 3, 3), normal(4), 2, 1)],
    "conv_transpose2d": [call(IMAGE, normal(3, 4, 3, 3), normal(4), 2, 1)],
    "fold": [call(normal(2, 12, 4), (4, 4), (2, 2), stride=(2, 2))],
    "unfold": [call(IMAGE, 2, stride=2)],
    "MintFunctional.interpolate": [
        call(IMAGE, (4, 4), None, "bilinear", True),
        call(IMAGE, (12, 12), None, "bilinear", False),
    ],
    "MintFunctional.kl_div": [call(np.log(UNIT), OTHER, reduction="sum"), call(np.log(UNIT), OTHER, reduction="none")],
    "MintFunctional.max_pool2d": [call(IMAGE, 3, 2), call(IMAGE, 2, 2, 1)],
    "MintFunctional.smooth_l1_loss": [call(X, Y, reduction="sum", beta=0.5), call(X, Y)],
}
