"""The pickle in a `.pt` file is read in a time and a memory that its own size bounds, whatever it says."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tensorprobe.errors import DumpError
from tensorprobe.store import weight_file
from tensorprobe.store.tensor_file import open_tensor
from tensorprobe.store.tensor_layout import Unreadable
from tensorprobe.store.tensor_pickle import PickledTensor, find_tensor, read_pickle, read_tree
from tensorprobe.store.weight_file import read_weight_file
from tests.store.torch_archive import name, number, sequence, tensor_pickle, text, write_archive

SMALL = tensor_pickle((2,), (1,))
INNER = SMALL.removeprefix(b"\x80\x02").removesuffix(b".")
SIX_THOUSAND_DIGITS = b"\x8b" + (2_500).to_bytes(4, "little") + b"\x7f" * 2_500
in_a_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)


def shared(wrap: str, width: int, depth: int) -> bytes:
    """Containers of which each holds the next one many times: a few bytes, and width ** depth ways through them."""
    node: object = {"w": 0}
    for _ in range(depth):
        node = [node] * width if wrap == "list" else dict.fromkeys(weight_file._KEYS, node)
    return pickle.dumps(node, 2)


def test_lists_that_hold_each_other_many_times_are_read_at_once(tmp_path: Path) -> None:
    tree = {"x": pickle.loads(shared("list", 12, 13))}
    content = pickle.dumps(tree, 2)
    assert len(content) < 751
    with pytest.raises(DumpError, match="holds no weights"):
        read_weight_file(write_archive(tmp_path / "a.pt", content, b""))


def test_every_dictionary_is_looked_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[object] = []

    def count(node: object) -> PickledTensor | None:
        looked_at.append(node)
        return find_tensor(node)

    monkeypatch.setattr(weight_file, "find_tensor", count)
    with pytest.raises(DumpError, match="holds no weights"):
        read_weight_file(write_archive(tmp_path / "a.pt", shared("dict", 7, 40), b""))
    assert len(looked_at) == 40 * len(weight_file._KEYS) + 1


def test_a_dictionary_that_holds_itself_ends(tmp_path: Path) -> None:
    tree: dict[str, object] = {"epoch": 3}
    tree["model"] = tree
    with pytest.raises(DumpError, match="holds no weights"):
        read_weight_file(write_archive(tmp_path / "a.pt", pickle.dumps(tree, 2), b""))


def test_weights_below_a_usual_key_are_found_however_deep_they_lie(tmp_path: Path) -> None:
    content = (
        b"\x80\x02" + b"".join(b"}" + text("model") for _ in range(50)) + b"}" + text("w") + INNER + b"s" * 51 + b"."
    )
    (stored,) = read_weight_file(write_archive(tmp_path / "a.pt", content, bytes(8)))
    assert (stored.weight.name, stored.weight.shape, stored.read().tolist()) == ("w", (2,), [0.0, 0.0])


def test_a_mark_is_found_without_a_search() -> None:
    """Every TUPLE looked through all that lies below it."""
    values = 200_000
    assert read_tree(b"\x80\x02" + b"N" * values + b"(t" * values + b".") == ()


def test_what_lies_below_a_mark_is_out_of_reach() -> None:
    for content in (b"N(a.", b"]N(a.", b"}(s.", b"t.", b"N(\x85.", b"(.", b"."):
        with pytest.raises(Unreadable, match="its pickle makes no sense"):
            read_tree(b"\x80\x02" + content)


@pytest.mark.parametrize("place", ["shape", "strides", "offset"])
def test_a_number_of_six_thousand_digits_is_one_clear_error(tmp_path: Path, place: str) -> None:
    numbers = {"shape": number(1), "strides": number(1), "offset": number(0), place: SIX_THOUSAND_DIGITS}
    storage = sequence(text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), number(1)) + b"Q"
    arguments = sequence(storage, numbers["offset"], sequence(numbers["shape"]), sequence(numbers["strides"]), b"\x89")
    content = b"\x80\x02" + name("torch._utils", "_rebuild_tensor_v2") + arguments + b"R."
    path = write_archive(tmp_path / "x.pt", content, bytes(8))
    with pytest.raises(DumpError, match=r"^x\.pt (has a header that|is damaged: its pickle) makes no sense$"):
        open_tensor(path)


@pytest.mark.parametrize("size", [b"\x88", b"G" + bytes(8), text("3"), b"N", b"]", number(-1)])
def test_a_size_that_is_no_count_is_refused(size: bytes) -> None:
    content = tensor_pickle((7,), (1,)).replace(number(7), size)
    with pytest.raises(Unreadable, match="makes no sense"):
        read_pickle(content)


def test_a_weight_of_a_thousand_dimensions_is_none(tmp_path: Path) -> None:
    content = b"\x80\x02}" + text("w") + tensor_pickle((1,) * 1_000, (1,) * 1_000)[2:-1] + b"s."
    with pytest.raises(DumpError, match="holds no weights"):
        read_weight_file(write_archive(tmp_path / "a.pt", content, bytes(4)))


def test_a_weight_whose_name_no_framework_could_write_is_refused(tmp_path: Path) -> None:
    surrogate = b"X\x03\x00\x00\x00\xed\xa0\x80"
    with pytest.raises(DumpError, match=r"a weight of the name '\\ud800', which is no text"):
        read_weight_file(write_archive(tmp_path / "a.pt", b"\x80\x02}" + surrogate + INNER + b"s.", bytes(8)))


OPCODES = b"(tR.]}\x85\x86\x87aesuQcNh\x00q\x01\x94\x93b0)\x88\x89K\x01\x8a\x01\x02"
pieces = st.one_of(
    st.sampled_from([INNER, text("model"), text("storage"), text("0"), number(1 << 62), SIX_THOUSAND_DIGITS]),
    st.sampled_from([bytes([code]) for code in OPCODES]),
    st.binary(max_size=3),
)


@in_a_folder
@given(st.lists(pieces, max_size=40).map(b"".join))
def test_any_pickle_is_read_or_refused_and_nothing_else(tmp_path: Path, content: bytes) -> None:
    path = write_archive(tmp_path / "a.pt", b"\x80\x02" + content, bytes(8))
    for read in (lambda: [stored.read() for stored in read_weight_file(path)], lambda: open_tensor(path)):
        try:
            read()
        except DumpError as error:
            assert len(str(error)) < 1_000


@in_a_folder
@given(st.lists(st.tuples(st.integers(0, len(SMALL) - 1), st.integers(0, 255)), max_size=4), st.integers(0, len(SMALL)))
def test_a_pickle_with_other_bytes_is_read_or_refused_and_nothing_else(
    tmp_path: Path, changes: list[tuple[int, int]], end: int
) -> None:
    content = bytearray(SMALL)
    for place, byte in changes:
        content[place] = byte
    try:
        array = open_tensor(write_archive(tmp_path / "a.pt", bytes(content[:end]), bytes(8)))
        assert array.size <= 1 << 28
    except DumpError:
        return
