"""What a value is when nothing is known of it yet, and when its numbers are finite."""

from __future__ import annotations

import pytest

from tensorprobe.model.record import Stats, TensorLeaf, Value


@pytest.mark.parametrize(("nans", "infs", "is_finite"), [(0, 0, True), (1, 0, False), (0, 2, False)])
def test_statistics_know_whether_all_was_finite(nans: int, infs: int, is_finite: bool) -> None:
    assert Stats(max=1.0, nan_count=nans, inf_count=infs).is_finite is is_finite


def test_statistics_can_be_filled_in_later() -> None:
    stats = Stats()
    value = Value(stats)
    stats.max = 3.0
    assert value.stats is not None
    assert value.stats.max == 3.0
    assert (stats.min, stats.reason) == (None, None)


def test_a_leaf_can_be_stored_unless_it_says_otherwise() -> None:
    leaf = TensorLeaf("torch.Tensor", "torch.float32", (2,), None, Value(None))
    assert leaf.is_storable
    assert (leaf.source, leaf.data_name, leaf.note) == (None, None, None)


def test_a_leaf_has_no_field_that_nobody_reads() -> None:
    with pytest.raises(TypeError, match="a leaf has no storge"):
        TensorLeaf("torch.Tensor", "torch.float32", (2,), None, Value(None), storge=1)
