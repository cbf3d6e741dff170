"""`tensorprobe report`: one file out of a saved comparison or out of a run; and where it goes."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.command import run_here
from tests.cli.test_compare import write_runs

pytest.importorskip("jinja2")


@pytest.fixture
def saved(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Path:
    folder = tmp_path / "result"
    done = run_here(capfd, "compare", *write_runs(tmp_path), "-o", folder, "--files", "json,html")
    assert done.returncode == 1
    return folder


def test_a_saved_comparison_gives_the_page_that_compare_wrote(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    page = saved / "report.html"
    written = page.read_bytes()
    page.unlink()
    done = run_here(capfd, "report", saved)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"written: {page}\n", "")
    assert page.read_bytes() == written
    assert stat.S_IMODE(page.stat().st_mode) == 0o600


def test_the_page_goes_where_it_is_wanted(saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pages").mkdir()
    for output, path in (
        (tmp_path / "a b.html", tmp_path / "a b.html"),
        (tmp_path / "pages", tmp_path / "pages/report.html"),
    ):
        done = run_here(capfd, "report", saved / "compare.json", "-o", output)
        assert (done.returncode, done.stdout) == (0, f"written: {path}\n")
        assert path.read_bytes().startswith(b"<!")
    done = run_here(capfd, "report", saved, "-o", tmp_path / "nowhere" / "x.html")
    assert done.returncode == 2
    assert done.stderr == f"error: -o {tmp_path}/nowhere/x.html: the folder {tmp_path}/nowhere does not exist.\n"


@pytest.mark.parametrize("name", ["compare.json", "compare.csv", "notes.txt"])
def test_what_is_no_page_is_not_replaced(saved: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    target = saved / name
    target.touch()
    before = target.read_bytes()
    done = run_here(capfd, "report", saved, "-o", target)
    assert (done.returncode, target.read_bytes()) == (2, before)
    assert done.stderr.startswith(f"error: -o {target} is there already, and no page")


def test_a_link_and_a_device_stay_what_they_are(saved: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "kept.html").write_text("kept")
    (tmp_path / "link.html").symlink_to(tmp_path / "kept.html")
    os.mkfifo(tmp_path / "pipe.html")
    for name in ("link.html", "pipe.html"):
        done = run_here(capfd, "report", saved, "-o", tmp_path / name)
        assert done.returncode == 2 and "no ordinary file" in done.stderr
    assert (tmp_path / "link.html").is_symlink() and (tmp_path / "pipe.html").is_fifo()
    assert (tmp_path / "kept.html").read_text() == "kept"


def test_nothing_is_put_into_a_dump(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    good, _ = write_runs(tmp_path)
    done = run_here(capfd, "report", good, "-o", good / "page.html")
    assert done.returncode == 2
    assert done.stderr == f"error: -o {good}/page.html lies in the dump {good}. Give a place of its own.\n"


def test_a_run_has_a_page_too(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    good, _ = write_runs(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = run_here(capfd, "report", good)
    assert (done.returncode, done.stdout, done.stderr) == (0, "written: report.html\n", "")
    assert (tmp_path / "report.html").read_bytes().startswith(b"<!")


def test_a_comparison_without_its_json_is_refused_with_the_option_that_writes_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_here(capfd, "compare", *write_runs(tmp_path), "-o", tmp_path / "result", "--files", "csv")
    done = run_here(capfd, "report", tmp_path / "result")
    assert (done.returncode, done.stdout) == (2, "")
    assert "has compare.csv, but no compare.json, which a report is made of" in done.stderr
    assert "--files csv,html,json" in done.stderr


def test_a_step_of_a_saved_comparison_cannot_be_chosen(saved: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "report", saved, "--step", 0)
    assert done.returncode == 2
    assert "--step and --rank choose a part of a run" in done.stderr


def test_what_is_neither_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    done = run_here(capfd, "report", tmp_path / "nothing")
    assert done.returncode == 2
    assert "nothing does not exist" in done.stderr
