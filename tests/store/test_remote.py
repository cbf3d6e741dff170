"""What goes wrong with a store, in words."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from tensorprobe.store.remote import NoPackageError, StoreError, open_filesystem, saying_why, strip_protocol

fsspec = pytest.importorskip("fsspec")


def test_an_address_is_opened_and_written_as_its_file_system_does() -> None:
    assert strip_protocol(open_filesystem("memory://run/step0"), "memory://run/step0") == "/run/step0"


def test_without_fsspec_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ModuleNotFoundError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(NoPackageError, match="needs fsspec: pip install fsspec s3fs"):
        open_filesystem("s3://bucket/run")


def test_without_the_package_of_a_store_its_name_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.delitem(
        sys.modules["fsspec.registry"]._registry, "gs", raising=False
    )  # where another test has loaded it
    with pytest.raises(NoPackageError, match=r"gs://bucket/run needs gcsfs: pip install gcsfs"):
        open_filesystem("gs://bucket/run")


def test_a_store_that_nobody_knows_is_named() -> None:
    with pytest.raises(NoPackageError, match="fsspec knows no store 'nowhere'"):
        open_filesystem("nowhere://run")


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (PermissionError("denied"), "memory://x may not be read or written with these keys (denied)."),
        (RuntimeError(), "memory://x cannot be reached (RuntimeError)."),
        (TimeoutError("too late"), "memory://x cannot be reached (too late)."),
    ],
)
def test_whatever_a_store_raises_becomes_a_sentence(raised: Exception, words: str) -> None:
    with pytest.raises(StoreError) as caught, saying_why("memory://x"):
        raise raised
    assert str(caught.value) == words


@pytest.mark.parametrize("raised", [FileNotFoundError("x"), ValueError("x"), StoreError("x")])
def test_what_has_a_meaning_already_is_passed_on(raised: Exception) -> None:
    with pytest.raises(type(raised)) as caught, saying_why("memory://x"):
        raise raised
    assert caught.value is raised
