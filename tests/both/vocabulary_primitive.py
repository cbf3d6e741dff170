"""What each primitive of MindSpore is made with, and called with, to do what a function of PyTorch does."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.both.vocabulary_input import IMAGE, LABELS, VOLUME, X, normal

PRIMITIVES: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {
    "ArgMaxWithValue": ({"axis": 1, "keep_dims": True}, None),
    "ArgMinWithValue": ({"axis": 1, "keep_dims": True}, None),
    "Argmax": ({"axis": 0}, None),
    "Argmin": ({"axis": 0}, None),
    "AvgPool": ({"kernel_size": 3, "strides": 2}, {"input": IMAGE, "kernel_size": 3, "stride": 2}),
    "AvgPool3D": ({"kernel_size": 3, "strides": 2}, {"input": VOLUME, "kernel_size": 3, "stride": 2}),
    "BCEWithLogitsLoss": ({"reduction": "sum"}, None),
    "BatchNorm": ({"is_training": False, "epsilon": 1e-3}, None),
    "BiasAdd": ({}, {"input": X, "other": normal(4)}),
    "BinaryCrossEntropy": ({"reduction": "sum"}, None),
    "BroadcastTo": ({"shape": (3, 4)}, None),
    "CeLU": ({"alpha": 0.5}, None),
    "Concat": ({"axis": 1}, None),
    "Conv2D": (
        {"out_channel": 6, "kernel_size": 3, "stride": 2, "dilation": 2, "group": 3},
        {"input": IMAGE, "weight": normal(6, 1, 3, 3), "stride": 2, "dilation": 2, "groups": 3},
    ),
    "Conv3D": (
        {"out_channel": 4, "kernel_size": 3, "stride": 2},
        {"input": VOLUME, "weight": normal(4, 3, 3, 3, 3), "stride": 2},
    ),
    "Dense": ({}, None),
    "ExpandDims": ({}, None),
    "Gather": ({}, None),
    "GatherD": ({}, None),
    "GeLU": ({}, None),
    "GridSampler2D": ({"interpolation_mode": "bilinear", "padding_mode": "zeros", "align_corners": True}, None),
    "HShrink": ({"lambd": 0.7}, None),
    "IsClose": ({"rtol": 1e-3, "atol": 1e-3}, None),
    "KLDivLoss": ({"reduction": "sum"}, None),
    "L2Normalize": ({"axis": 0, "epsilon": 1e-6}, None),
    "LayerNorm": ({"begin_norm_axis": -1, "begin_params_axis": -1, "epsilon": 1e-3}, None),
    "LogSoftmax": ({"axis": 0}, None),
    "MaxPool": ({"kernel_size": 3, "strides": 2}, {"input": IMAGE, "kernel_size": 3, "stride": 2}),
    "MaxPool3D": ({"kernel_size": 3, "strides": 2}, {"input": VOLUME, "kernel_size": 3, "stride": 2}),
    "MaxPoolWithArgmax": ({"kernel_size": 3, "strides": 2}, {"input": IMAGE, "kernel_size": 3, "stride": 2}),
    "NLLLoss": ({"reduction": "sum", "ignore_index": 1}, None),
    "Pack": ({"axis": 1}, None),
    "ReduceAll": ({"keep_dims": True}, None),
    "ReduceAny": ({"keep_dims": True}, None),
    "ReduceMax": ({"keep_dims": True}, None),
    "ReduceMean": ({"keep_dims": True}, None),
    "ReduceMin": ({"keep_dims": True}, None),
    "ReduceProd": ({"keep_dims": True}, None),
    "ReduceSum": ({"keep_dims": True}, None),
    "BatchMatMul": ({}, None),
    "CumSum": ({}, {"input": X, "dim": 0}),
    "MaskedFill": ({}, None),
    "MatMul": ({}, None),
    "PReLU": ({}, None),
    "Pow": ({}, None),
    "Reshape": ({}, None),
    "Select": ({}, None),
    "Softmax": ({"axis": 0}, None),
    "SoftmaxCrossEntropyWithLogits": (
        {},
        {"input": X, "target": np.eye(4, dtype=np.float32)[LABELS], "reduction": "none"},
    ),
    "SparseSoftmaxCrossEntropyWithLogits": ({}, {"input": X, "target": LABELS.astype(np.int32)}),
    "Split": ({"axis": 1, "output_num": 2}, None),
    "Squeeze": ({"axis": 1}, None),
    "Stack": ({"axis": 1}, None),
    "TensorScatterElements": ({"axis": 1}, None),
    "Tile": ({}, None),
    "TopK": ({}, None),
    "Transpose": ({}, None),
    "Unpack": ({"axis": 1}, None),
}
"""What a primitive is made with, and the arguments of PyTorch's function, where they are not those above."""

PRIMITIVES_NOT_CALLED_ALIKE = {
    "one of its operands is a number": (
        *("AddScalar", "ClampTensor", "DivMods", "Divs", "EqScalar", "FillTensor", "FloorDivScalar", "FmodScalar"),
        *("GreaterEqualScalar", "LessScalar", "Muls", "PowScalarTensor", "RemainderScalarTensor", "SubScalar"),
        *("RemainderTensorScalar",),
    ),
    "an argument has another form": (
        *("CTCLossV2", "Conv2DTranspose", "Conv3DTranspose", "Convolution", "ConvolutionStr", "CrossEntropyLoss"),
        *(
            "CumulativeLogsumexp",
            "EmbeddingLookup",
            "Fill",
            "GridSampler3D",
            "Im2Col",
            "LinSpace",
            "MaxPoolWithIndices",
        ),
        *("MaxPoolWithMask", "NLLLoss2d", "OneHot", "PadV3", "RepeatInterleaveTensor", "ScatterAdd", "SearchSorted"),
        *("SplitV", "SplitWithSize", "SigmoidCrossEntropyWithLogits", "Assign", "Cast", "ToDtype", "ToOther", "DivMod"),
    ),
    "it draws random numbers": (
        *("Dropout", "DropoutDoMask", "DropoutExt", "NormalFloatFloat", "NormalFloatTensor", "NormalTensorFloat"),
        *("NormalTensorTensor", "RandInt", "RandIntLike", "UniformInt", "UniformReal"),
    ),
    "it moves tensors between processes": (
        *("AllGather", "AlltoAll", "InnerCommAllGather", "InnerCommAllReduce", "InnerCommReduceScatter", "Receive"),
        *("ReduceScatter",),
    ),
    "a whole network in one call": ("DynamicGRUV2", "DynamicRNN", "LSTM"),
    "PyTorch has no such function": ("FastGeLU", "GatherNd", "UnsortedSegmentSum"),
    "no kernel on a CPU": (
        *("ArgSort", "BatchNormExt", "FillScalar", "Fills", "FlashAttentionScore", "FmodTensor", "FuncMaxPool2D"),
        *("KLDiv", "LayerNormExt", "LogAddExp", "LogAddExp2", "LogSigmoid", "LogSumExp", "MaskedFillScalar"),
        *("GroupNorm", "MultilabelMarginLoss"),
        *("RemainderTensorTensor", "RepeatInterleaveInt", "RmsNorm"),
    ),
    "known by its name with an ending only": (
        *("ArgMax", "ArgMin", "FuncDropout", "L1Loss", "LeakyReLU", "MSELoss", "T", "TransposeExt"),
    ),
}
"""Primitives that are not run here, and why."""
