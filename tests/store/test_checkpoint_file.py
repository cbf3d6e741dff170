"""A checkpoint of MindSpore is looked through before MindSpore believes it. (`tests/mindspore` has real ones.)"""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.errors import DumpError
from tensorprobe.store.checkpoint_file import check_checkpoint
from tests.store.print_bytes import field, tensor_value, varint


def weight(name: str, dims: tuple[int, ...], content: bytes, tensor_type: str = "Float32") -> bytes:
    """One weight: what a print file has of a tensor, with a name before it."""
    sizes = b"".join(varint(1 << 3) + varint(size) for size in dims)
    tensor = sizes + field(2, tensor_type.encode()) + field(3, content)
    return field(1, field(1, name.encode()) + field(2, tensor))


GOOD = weight("a", (2, 3), bytes(24)) + weight("b", (), bytes(4))


def refused(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(DumpError) as caught:
        check_checkpoint(path)
    return str(caught.value)


PIECES = weight("a", (2, 3), bytes(16)) + weight("a", (2, 3), bytes(8)) + weight("b", (0,), bytes(4))
TEXT = weight("epoch", (0,), "abc".encode("utf-32-le"), "str")


@pytest.mark.parametrize("content", [GOOD, GOOD + b"crc_num" + bytes(10), PIECES, TEXT, b""])
def test_a_checkpoint_with_a_checksum_or_without_and_one_in_pieces_are_taken(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.ckpt").write_bytes(content)
    check_checkpoint(tmp_path / "a.ckpt")


def test_what_no_weight_can_be_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.ckpt"
    assert "impossible dimensions" in refused(path, GOOD + weight("c", (1,) * 200_000, bytes(4)))
    assert "impossible dimensions" in refused(path, GOOD + tensor_value("Float32", ((1 << 64) - 1,), b""))
    assert "has 4 bytes of 'c', whose shape [3] needs another number" in refused(
        path, GOOD + weight("c", (3,), bytes(4))
    )
    assert "needs another number" in refused(path, weight("c", (1 << 28,), bytes(4)))
    assert "needs another number" in refused(path, weight("c", (1 << 28,), bytes(4), "Int4"))
    assert "holds a hash table, 'c'" in refused(path, field(1, field(1, b"c") + field(3, b"")))
    assert "is cut off" in refused(path, GOOD[:-1])
    assert "makes no sense at byte" in refused(path, b"\x0b" + GOOD)  # a group, which protobuf itself passes over
    assert "makes no sense at byte" in refused(path, GOOD + b"crc_num")


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.integers(0, len(GOOD)), st.binary(max_size=8))
def test_any_file_is_taken_or_refused_and_nothing_else(tmp_path: Path, place: int, piece: bytes) -> None:
    (tmp_path / "a.ckpt").write_bytes(GOOD[:place] + piece + GOOD[place + 1 :])
    try:
        check_checkpoint(tmp_path / "a.ckpt")
    except DumpError as error:
        assert "a.ckpt" in str(error)
