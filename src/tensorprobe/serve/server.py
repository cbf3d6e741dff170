"""The server process: it listens on loopback, and Ctrl-C ends it."""

from __future__ import annotations

import importlib.util
import secrets
import signal
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from types import FrameType

from tensorprobe.errors import UsageError
from tensorprobe.serve.shown import Shown

HOST = "127.0.0.1"
_PACKAGES = ("starlette", "uvicorn", "jinja2")


def check_packages() -> None:
    """Is there what a server needs? Asked before the long work."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f'tensorprobe serve needs {", ".join(missing)}: pip install "tensorprobe[serve]"')


def serve_page(shown: Shown, port: int, on_ready: Callable[[str], None]) -> None:
    """Show it until Ctrl-C. `on_ready` is told the address, once requests are taken."""
    check_packages()
    import uvicorn

    from tensorprobe.report.page.document import render
    from tensorprobe.serve.application import make_application

    token = secrets.token_urlsafe(16)
    with closing(shown), closing(_listen(port)) as listener:
        application = make_application(shown, render(shown.page, {"token": token}), token)
        config = uvicorn.Config(application, log_level="warning", access_log=False, lifespan="off", ws="none")
        on_ready(f"http://{HOST}:{listener.getsockname()[1]}/?token={token}")
        before = signal.signal(signal.SIGTERM, _leave)  # uvicorn stops, and then raises the signal once more
        try:
            with suppress(KeyboardInterrupt):  # the way to end it
                uvicorn.Server(config).run(sockets=[listener])
        finally:
            signal.signal(signal.SIGTERM, before)


def _leave(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"--port {port} cannot be listened on ({reason}). Give another one; 0 takes a free one."
        ) from None
    return listener
