"""What the less common functions are called with: see meaning_case.py."""

from __future__ import annotations

import numpy as np

from tests.both.meaning_case import (
    CUBE,
    IMAGE,
    INTEGERS,
    MASK,
    OTHER,
    SERIES,
    UNIT,
    VOLUME,
    WIDE,
    Case,
    Cases,
    Dtype,
    X,
    Y,
    Z,
    call,
    made,
    normal,
    positive,
)

_VECTOR, _SQUARE = normal(4), normal(3, 3)
_DEFINITE = (_SQUARE @ _SQUARE.T + 3 * np.eye(3)).astype(np.float32)
_SORTED = np.arange(5, dtype=np.float32)
_PLACES = np.array([[2], [0]], np.int32)
_PAIRS = np.array([[0, 1], [2, 3], [1, 1]], np.int32)
_ROWS = np.array([2, 0], np.int32)
_COMPLEX = (X + 1j * Y).astype(np.complex64)
_INFINITE = np.array([1, np.nan, np.inf, -np.inf, -0.0], np.float32)
_WAYS = ("add", "sub", "max", "min", "mul", "div")


def _ctc(reduction: str) -> Case:
    logs = np.log(positive(6, 2, 5))
    targets = np.array([[1, 2, 2], [3, 1, 4]], np.int32)
    return call(logs, targets, np.array([6, 5], np.int32), np.array([3, 2], np.int32), 0, reduction)


SPECIAL: Cases = {
    **{name: [call(X)] for name in ("imag", "conj", "real", "sgn", "deg2rad", "rad2deg", "i0", "tanhshrink", "exp_")},
    **{name: [call(_INFINITE)] for name in ("isposinf", "isneginf", "isreal", "signbit")},
    **{name: [call(UNIT)] for name in ("digamma", "lgamma", "arccos", "arcsin", "arctanh", "Tensor.inv", "Erfinv")},
    **{name: [call(X)] for name in ("arctan", "arcsinh", "L2Loss")},
    "arccosh": [call(UNIT + 1)],
    "real": [call(X), call(_COMPLEX)],
    "imag": [call(X), call(_COMPLEX)],
    "view_as_real": [call(_COMPLEX)],
    "polar": [call(UNIT, X)],
    "logit": [call(UNIT), call(UNIT, 0.3)],
    **{name: [call(UNIT, OTHER)] for name in ("arctan2", "copysign", "fmax", "mul_", "remainder_")},
    **{
        name: [call(X, Y)] for name in ("copysign", "fmax", "arctan2", "heaviside", "SquaredDifference", "SquareSumAll")
    },
    "ldexp": [call(X, INTEGERS), call(X, Y)],
    "gcd": [call(INTEGERS, INTEGERS[::-1].copy())],
    "float_power": [call(UNIT, 2), call(UNIT, OTHER)],
    "polygamma": [call(np.array(1, np.int32), UNIT), call(np.array(2, np.int32), UNIT)],
    "soft_shrink": [call(X), call(X, 0.7)],
    "softmin": [call(X), call(X, 0)],
    **{name: [call(np.where(MASK, X, 0).astype(np.float32), Y)] for name in ("xdivy", "Xdivy")},
    "DivNoNan": [call(X, np.where(MASK, Y, 0).astype(np.float32))],
    "addn": [call([X, Y, Z])],
    "AddN": [call((X, Y, Z))],
    "allclose": [call(X, Y), call(X, X + 1e-3, 1e-2, 1e-2)],
    "add_": [call(X, Y), call(X, Y, alpha=2)],
    "sub_": [call(X, Y), call(X, Y, alpha=2)],
    "div_": [call(X, UNIT), call(X, 3.0)],
    "floor_divide_": [call(X, UNIT)],
    "copy_": [call(X, Y), call(X, normal(4))],
    "clip_by_norm": [call(X, 0.5), call([X, Y], 0.5), call(X, 100.0), call(X, 0.5, 1.0)],
    "clip_by_global_norm": [call([X, Y], 0.5), call((X, Y), 100.0)],
    "nansum": [call(X), call(np.where(MASK, X, np.nan).astype(np.float32), 1, True)],
    "nanmean": [call(X), call(np.where(MASK, X, np.nan).astype(np.float32), 0, True)],
    "bitwise_and": [call(INTEGERS, INTEGERS[::-1].copy())],
}

ALGEBRA: Cases = {
    "vector_norm": [call(X), call(X, 1, 0, True), call(CUBE, 3.0, 2)],
    "matrix_norm": [call(X), call(CUBE, 1, (0, 2), True), call(X, "nuc")],
    "addr": [call(X, normal(3), normal(4)), call(X, normal(3), normal(4), beta=2, alpha=3)],
    "vecdot": [call(X, Y), call(X, Y, axis=0)],
    "bidense": [call(X, normal(3, 5), normal(2, 4, 5), normal(2)), call(CUBE, CUBE, normal(2, 4, 4), normal(2))],
    "tensor_dot": [call(CUBE, normal(4, 3), 1), call(X, Y, (1, 1)), call(CUBE, X, ((1, 2), (0, 1)))],
    "pinv": [call(X)],
    "cholesky": [call(_DEFINITE), call(_DEFINITE, True)],
    "svd": [call(X, False, False)],
    "MatrixInverse": [made(_DEFINITE), made(_DEFINITE, adjoint=True)],
    "vander": [call(_VECTOR), call(_VECTOR, 3)],
    **{name: [call(_DEFINITE)] for name in ("det", "slogdet", "logdet")},
    "matrix_power": [call(_SQUARE, 2), call(_SQUARE, 0), call(_DEFINITE, -1)],
    "kron": [call(X, normal(2, 3))],
    "inner": [call(_VECTOR, normal(4)), call(CUBE, X)],
    "ger": [call(normal(3), _VECTOR)],
    "cov": [call(X), call(X, correction=0)],
    "cdist": [call(X, normal(5, 4)), call(CUBE, normal(2, 5, 4), 1.0)],
    "Cdist": [made(CUBE, normal(2, 5, 4)), made(CUBE, normal(2, 5, 4), p=1.0)],
    "pdist": [call(X), call(X, 1.0)],
    "renorm": [call(X, 2, 0, 1.0), call(X, 1, 1, 0.5)],
}

ARRANGE: Cases = {
    **{name: [call((X, Y)), call((_VECTOR, _VECTOR + 1))] for name in ("vstack", "hstack", "dstack", "column_stack")},
    "block_diag": [call(X, normal(2, 3))],
    "cartesian_prod": [call(_VECTOR, normal(3))],
    "combinations": [call(_VECTOR), call(_VECTOR, 3, True)],
    "meshgrid": [call(_VECTOR, normal(3)), call(_VECTOR, normal(3), indexing="ij")],
    "Mint.meshgrid": [call(_VECTOR, normal(3)), call(_VECTOR, normal(3), indexing="xy")],
    "Functional.diag": [call(_VECTOR), call(normal(2, 3))],
    "Tensor.diag": [call(_VECTOR), call(normal(2, 3))],
    "Diag": [call(_VECTOR), call(normal(2, 3))],
    "diagonal": [call(X), call(CUBE, 1, 2, 0)],
    "Tensor.diagonal": [call(X), call(CUBE, 1, 2, 0), call(CUBE, offset=1, axis1=1, axis2=2)],
    "diag_embed": [call(X), call(X, 1, 0, 2)],
    "Tensor.trace": [call(X), call(CUBE, 1, 1, 2)],
    "rot90": [call(X, 1, (0, 1)), call(CUBE, 3, [1, 2])],
    **{name: [call(X)] for name in ("fliplr", "flipud")},
    "hsplit": [call(X, 2), call(X, (1, 3))],
    "vsplit": [call(X, 3), call(X, (1, 2))],
    "dsplit": [call(CUBE, 2), call(CUBE, (1, 2))],
    "repeat_elements": [call(X, 2), call(X, 2, 1)],
    "select_scatter": [call(X, normal(4), 0, 1), call(X, normal(3), 1, 2)],
    "slice_scatter": [call(X, normal(2, 4), 0, 1, 3), call(X, normal(3, 2), 1, 0, 4, 2)],
    "Tensor.select": [call(X, 1, 2)],
    "masked_scatter": [call(X, MASK, normal(12))],
    "padding": [call(normal(3, 1), 4), call(normal(3, 1))],
    "mirror_pad": [call(X, np.array([[1, 2], [0, 1]], np.int32), "REFLECT")],
    "reverse_sequence": [call(X, np.array([2, 4, 1], np.int32), 1), call(X, np.array([2, 1, 3, 1], np.int32), 0, 1)],
    "ReverseSequence": [made(X, np.array([2, 4, 1], np.int32), seq_dim=1)],
    "sequence_mask": [call(np.array([2, 4, 1], np.int32)), call(np.array([2, 4, 1], np.int32), 6)],
    **{name: [call(3, 4), call(3, 4, 1)] for name in ("tril_indices", "triu_indices")},
    "range": [call(0, 5, 1), call(np.array(1, np.int32), np.array(9, np.int32), np.array(3, np.int32))],
    "Range": [call(np.array(1, np.int32), np.array(9, np.int32), np.array(3, np.int32))],
    "fill": [call(Dtype("float32"), (2, 3), 1.5), call(Dtype("int32"), (2, 3), 2)],
    "Tensor.fill": [call(X, 2.5)],
    **{name: [call(X, (2, 3)), call(X, (2, 3), dtype=Dtype("int32"))] for name in ("new_zeros", "new_ones")},
    "hann_window": [call(5), call(5, False)],
    "diff": [call(X), call(X, 1, 0), call(X, 1, 0, normal(1, 4), normal(2, 4))],
    "Mint.diff": [call(X), call(X, 2, 0)],
}

CHOICE: Cases = {
    **{name: [call(X, 0), call(CUBE, 2)] for name in ("cummax", "cummin")},
    "median": [call(X), call(CUBE, 1, True)],
    "top_k": [call(X, 2), call(CUBE, 3)],
    "aminmax": [call(X), call(X, axis=1, keepdims=True)],
    "ptp": [call(X), call(X, 1, True)],
    **{name: [call(X), call(X, 1), call(CUBE, (0, 2), 1, True)] for name in ("std_mean", "var_mean")},
    "count_nonzero": [call(INTEGERS - 4), call(INTEGERS - 4, 1)],
    "bincount": [call(np.array([1, 1, 4], np.int32)), call(np.array([1, 1, 4], np.int32), np.array([1, 2, 3]), 7)],
    **{name: [call(np.array([3, 1, 2, 1, 3], np.int32))] for name in ("unique", "Unique")},
    "unique_consecutive": [call(np.array([1, 1, 2, 1], np.int32)), call(np.array([1, 1, 2, 1], np.int32), True, True)],
    "searchsorted": [call(_SORTED, positive(2, 3) * 4), call(_SORTED, _SORTED, right=True)],
    "Tensor.searchsorted": [call(_SORTED, positive(2, 3) * 4), call(_SORTED, _SORTED, "right")],
    "Tensor.take": [
        call(X, np.array([1, 13, -1], np.int32)),
        call(X, np.array([[1, 13]], np.int32), None, "wrap"),
        call(X, np.array([[1, -1], [9, 0]], np.int32), 1),
    ],
    "CumProd": [made(UNIT, 1), made(UNIT, 0, exclusive=True), made(UNIT, 1, reverse=True)],
    "logcumsumexp": [call(X, 0), call(X, 1)],
    **{name: [call(MASK), call(X)] for name in ("nonzero", "argwhere", "NonZero")},
    "MaskedSelect": [call(X, MASK)],
}

SCATTER: Cases = {
    **{
        name: [call(_PLACES, normal(2, 4), (3, 4)), call(_PAIRS, normal(3), (3, 4))]
        for name in ("scatter_nd", "ScatterNd")
    },
    **{
        name: [call(X, _PLACES, positive(2, 4)), call(X, _PAIRS, positive(3))]
        for way in ("update", *_WAYS)
        for name in (f"tensor_scatter_{way}", f"TensorScatter{way.capitalize()}")
    },
    **{  # of parameters, through which nothing comes back
        f"scatter_nd_{way}": [
            call(X.astype(float), _PLACES, UNIT[:2].astype(float)),
            call(X.astype(float), _PAIRS, UNIT[:, 0].astype(float)),
        ]
        for way in ("update", *_WAYS)
    },
    **{
        f"scatter_{way}": [call(X.astype(float), _ROWS, UNIT[:2].astype(float))]
        for way in ("update", "add", "max", "min", "mul", "div")
    },
    **{f"Tensor.scatter_{way}": [call(X, _PLACES, positive(2, 4))] for way in _WAYS[1:]},
    **{
        f"{prefix}.index_add": [call(X, _ROWS, normal(2, 4), 0), call(X, _ROWS, normal(3, 2), 1)]
        for prefix in ("Functional", "Tensor")
    },
    "index_fill": [call(X, 0, _ROWS, 2.5), call(X, 1, _ROWS, 0.5)],
    **{
        name: [
            call(X, np.array([1, 0, 1], np.int32), 3),
            call(X, np.array([1, -1, 0], np.int32), 2),
        ]
        for name in ("unsorted_segment_prod", "UnsortedSegmentProd")
    },
}

PICTURE: Cases = {
    "pixel_shuffle": [call(normal(2, 8, 3, 4), 2)],
    "pixel_unshuffle": [call(normal(2, 3, 4, 6), 2)],
    "channel_shuffle": [call(WIDE, 2)],
    "grid_sample": [
        call(IMAGE, normal(2, 4, 5, 2) * 0.5),
        call(IMAGE, normal(2, 4, 5, 2) * 0.5, "nearest", "border", True),
    ],
    "GridSampler2D": [
        made(IMAGE, normal(2, 4, 5, 2) * 0.5),
        made(IMAGE, normal(2, 4, 5, 2), padding_mode="reflection", align_corners=True),
    ],
    "GridSampler3D": [made(VOLUME, normal(2, 4, 5, 3, 3) * 0.5)],
    "affine_grid": [call(normal(2, 2, 3), (2, 3, 4, 5)), call(normal(2, 2, 3), (2, 3, 4, 5), True)],
    "MintFunctional.upsample": [call(IMAGE, (16, 12)), call(IMAGE, scale_factor=2.0)],
    "upsample": [call(IMAGE, (12, 12), None, "bilinear", True), call(IMAGE, (16, 12))],
    "DepthToSpace": [made(WIDE, block_size=2)],
    "SpaceToDepth": [made(IMAGE, block_size=2)],
    "unfold": [call(IMAGE, 2, stride=2), call(IMAGE, 3, 2, 1, 1)],
    "Functional.fold": [call(normal(2, 12, 4), np.array([4, 4], np.int32), (2, 2), 1, 0, 2)],
    "max_pool3d": [call(VOLUME, 2), call(VOLUME, 3, 2, 1, 1, True)],
    "Functional.avg_pool3d": [
        call(VOLUME, 3, 2),
        call(VOLUME, 2, 2, 1, False, False),
        call(VOLUME, 2, 2, divisor_override=3),
    ],
    "adaptive_max_pool1d": [call(SERIES, 4), call(SERIES, 2)],
    "adaptive_max_pool2d": [call(IMAGE, (4, 2)), call(IMAGE, 3), call(IMAGE, (None, 3), True)],
    "adaptive_max_pool3d": [call(VOLUME, (2, 3, 1)), call(VOLUME, 2, True)],
    "adaptive_avg_pool3d": [call(VOLUME, (2, 3, 1)), call(VOLUME, 2)],
    "lp_pool1d": [call(np.abs(SERIES), 2, 3), call(np.abs(SERIES), 3.0, 2, 1)],
    "lp_pool2d": [call(np.abs(IMAGE), 2, 3), call(np.abs(IMAGE), 3.0, 2, 1)],
    "lrn": [call(WIDE), call(WIDE, 1, 2.0, 0.5, 0.75)],
    "Conv2DBackpropInput": [
        made(normal(2, 4, 3, 3), normal(4, 3, 3, 3), (2, 3, 7, 7), out_channel=4, kernel_size=3, stride=2),
    ],
    "multilabel_soft_margin_loss": [call(X, UNIT), call(X, UNIT, positive(4), "sum"), call(X, UNIT, reduction="none")],
    "hinge_embedding_loss": [call(X, np.sign(Y)), call(X, np.sign(Y) * MASK, 0.5, "sum")],
    "gaussian_nll_loss": [call(X, Y, UNIT), call(X, Y, UNIT, True, 0.5, "sum"), call(X, Y, UNIT[:, 0].copy())],
    "multi_margin_loss": [
        call(X, np.array([1, 3, 0], np.int64)),
        call(X, np.array([1, 3, 0], np.int64), 2, 2, positive(4), "sum"),
    ],
    "ctc_loss": [_ctc("mean"), _ctc("sum"), _ctc("none")],
}
PARTS: Cases = {**SPECIAL, **ALGEBRA, **ARRANGE, **CHOICE, **SCATTER, **PICTURE}
