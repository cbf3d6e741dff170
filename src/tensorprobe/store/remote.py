"""The file systems of stores, through fsspec; what goes wrong there, in words.

fsspec is imported when the first address is opened. How to get into a store (keys, endpoint) is said where fsspec and
the store's own package look for it: environment variables and configuration files.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tensorprobe.errors import DumpError

_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "abfss": "adlfs",
    "az": "adlfs",
    "oss": "ossfs",
    "hdfs": "pyarrow",
    "hf": "huggingface_hub",
    "http": "aiohttp",
    "https": "aiohttp",
    "sftp": "paramiko",
    "ssh": "paramiko",
}


class StoreError(DumpError):
    """A store cannot be reached, or does not have what was asked for."""


class NoPackageError(StoreError):
    """What reads this kind of store is not installed."""


def open_filesystem(url: str) -> Any:
    """The file system that an address belongs to."""
    protocol = url.partition("://")[0]
    package = _PACKAGES.get(protocol)
    try:
        fsspec = importlib.import_module("fsspec")
    except ModuleNotFoundError as error:
        wanted = "fsspec" if package is None else f"fsspec {package}"
        raise NoPackageError(f"{url} is in a store, which needs fsspec: pip install {wanted}") from error
    try:
        with saying_why(url):
            return fsspec.filesystem(protocol, **_options(fsspec, url))
    except ImportError as error:
        wanted = package or "the package that fsspec names"
        raise NoPackageError(f"{url} needs {wanted}: pip install {wanted} ({error})") from error
    except ValueError as error:
        raise NoPackageError(f"{url}: fsspec knows no store {protocol!r} ({error}).") from error


def _options(fsspec: Any, url: str) -> dict[str, Any]:
    """What the address itself says of its store: the host of `sftp://host/path`, for example."""
    kind = fsspec.get_filesystem_class(url.partition("://")[0])
    found: dict[str, Any] = kind._get_kwargs_from_urls(url)
    return found


def strip_protocol(filesystem: Any, url: str) -> str:
    """The address as its own file system writes it."""
    return str(filesystem._strip_protocol(url))


@contextmanager
def saying_why(url: str) -> Iterator[None]:
    """Around what asks a store for something: FileNotFoundError as it is; all else that a store may raise, and each
    package has exceptions of its own, as a StoreError."""
    try:
        yield
    except (FileNotFoundError, ImportError, ValueError, DumpError):
        raise
    except PermissionError as error:
        raise StoreError(f"{url} may not be read or written with these keys ({_describe(error)}).") from error
    except Exception as error:
        raise StoreError(f"{url} cannot be reached ({_describe(error)}).") from error


def _describe(error: BaseException) -> str:
    return str(error).strip() or type(error).__name__
