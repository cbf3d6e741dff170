"""`tensorprobe.widget.save_convert`: a print file of MindSpore as .npy files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tensorprobe as ts
from tensorprobe.errors import DumpError, UsageError
from tests.store.print_bytes import array_value, tensor_value, text_value

FOUR = np.array([2, 3, 4, 5], np.float32)


def saved(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_both_dialects_and_nothing_without_the_mark(tmp_path: Path) -> None:
    content = text_value("loss: ") + array_value(np.ones(3))
    content += text_value("_TS_SAVE_NAME:add") + array_value(FOUR)
    content += text_value("_TS_SAVE_NAME:text\nTensor(shape=[4], dtype=Float32, value=\n[2 3 4 5])")
    content += text_value("_TS_SAVE_NAME:apart_backward") + text_value(
        "Tensor(shape=[4], dtype=Float32, value=\n[2 3 4 5])"
    )
    content += array_value(np.ones(3)) + text_value("done")
    (tmp_path / "print").write_bytes(content)
    ts.widget.save_convert(tmp_path / "print", str(tmp_path / "out"))
    assert saved(tmp_path / "out") == ["0_add.npy", "1_text.npy", "2_apart_backward.npy"]
    for name in saved(tmp_path / "out"):
        assert np.array_equal(np.load(tmp_path / "out" / name), FOUR) and np.load(tmp_path / "out" / name).dtype == "f4"


@pytest.mark.parametrize("gap", ["\n", " ", "\n\n", "  \n "])
def test_a_name_ends_where_its_line_or_its_tensor_begins(tmp_path: Path, gap: str) -> None:
    tensor = "Tensor(shape=[2, 2], dtype=Float32, value=\n[[2 3]\n [4 5]])"
    (tmp_path / "print").write_bytes(text_value(f"_TS_SAVE_NAME:a b.0{gap}{tensor}"))
    ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert np.array_equal(np.load(tmp_path / "out" / "0_a b.0.npy"), FOUR.reshape(2, 2))


def test_a_name_of_five_million_spaces_comes_to_an_end(tmp_path: Path) -> None:
    """Work that grows with the square of the spaces would take hours."""
    (tmp_path / "print").write_bytes(text_value(f"_TS_SAVE_NAME:{' ' * 5_000_000}x") + array_value(FOUR))
    ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert saved(tmp_path / "out") == ["0_x.npy"]


def test_a_name_cannot_leave_the_folder(tmp_path: Path) -> None:
    (tmp_path / "print").write_bytes(text_value("_TS_SAVE_NAME:../../x.npy") + array_value(FOUR))
    ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert saved(tmp_path / "out") == ["0_..%2F..%2Fx.npy"]


def test_of_a_file_that_was_cut_the_rest_is_converted_and_the_error_says_where(tmp_path: Path) -> None:
    content = (text_value("_TS_SAVE_NAME:add") + array_value(FOUR)) * 2
    (tmp_path / "print").write_bytes(content[:-3])
    with pytest.raises(
        DumpError, match=rf"print is cut off: what begins at byte 75 .* of {len(content) - 3}; what lies"
    ):
        ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert saved(tmp_path / "out") == ["0_add.npy"]


def test_what_cannot_be_decoded_keeps_its_number_and_the_rest_is_converted(tmp_path: Path) -> None:
    content = text_value("_TS_SAVE_NAME:words") + tensor_value("String", (1,), b"x")
    content += text_value("_TS_SAVE_NAME:lost") + text_value("_TS_SAVE_NAME:add") + array_value(FOUR)
    (tmp_path / "print").write_bytes(content)
    with pytest.raises(DumpError) as got:
        ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert str(got.value).splitlines() == [
        f"{tmp_path / 'print'}: words holds a tensor of the type 'String', which is not converted",
        f"{tmp_path / 'print'}: lost has a name and no tensor",
    ]
    assert saved(tmp_path / "out") == ["2_add.npy"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "is missing"),
        (b"", "holds nothing that save"),
        (text_value("hello"), "holds nothing that save"),
        (b"hello", "is neither a .pt file nor a file that MindSpore's print_file_path has made"),
        (b"\x93NUMPY\x01\x00", "is a .npy file already"),
    ],
)
def test_another_file_is_refused_with_what_it_is(tmp_path: Path, content: bytes | None, words: str) -> None:
    if content is not None:
        (tmp_path / "print").write_bytes(content)
    with pytest.raises(DumpError, match=words):
        ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_wrong_arguments_are_an_error_that_says_so() -> None:
    with pytest.raises(UsageError, match=r"save_convert\(file, output_path\): both are paths, not 3"):
        ts.widget.save_convert(3, "out")  # type: ignore[arg-type]


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "print").write_bytes(text_value("_TS_SAVE_NAME:add") + array_value(FOUR))
    (tmp_path / "out").write_text("")
    with pytest.raises(DumpError, match=r"0_add.npy cannot be written \(Not a directory\)|File exists"):
        ts.widget.save_convert(tmp_path / "print", tmp_path / "out")
