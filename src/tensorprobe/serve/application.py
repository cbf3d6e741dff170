"""The routes of a page with its tensors. On loopback only, and only for who has the token that was printed.

Any page in the user's browser can send requests to this machine. It has not the token; a name that was made to lead
here (DNS rebinding) is refused by its Host header; and nothing is looked up by a path that a request gives.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from tensorprobe.serve.shown import Shown

HOSTS = ("127.0.0.1", "localhost")
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "X-Content-Type-Options": "nosniff",
}
_REFUSED = "The token is missing or wrong. Open the address that tensorprobe serve printed.\n"

Answer = Callable[[Request], Awaitable[Response]]


def make_application(shown: Shown, page: bytes, token: str) -> Starlette:
    """The page under `/`, a pair under `/api/pair?row=N`, the source of a call under `/api/source?call=N`."""

    def show_page(request: Request) -> Response:
        return Response(page, media_type="text/html; charset=utf-8")

    def show_pair(request: Request) -> Response:
        return _answer(request, "row", len(shown.page["rows"]["call"]), shown.describe_row)

    def show_source(request: Request) -> Response:
        return _answer(request, "call", len(shown.page["calls"]["place"]), shown.describe_call)

    async def guard(request: Request, go_on: Answer) -> Response:
        given = request.query_params.get("token", "").encode("utf-8", "surrogatepass")
        if secrets.compare_digest(given, token.encode("ascii")):
            answer = await go_on(request)
        else:
            answer = PlainTextResponse(_REFUSED, status_code=403)
        answer.headers.update(_HEADERS)
        return answer

    return Starlette(
        routes=[Route("/", show_page), Route("/api/pair", show_pair), Route("/api/source", show_source)],
        middleware=[
            Middleware(TrustedHostMiddleware, allowed_hosts=list(HOSTS), www_redirect=False),
            Middleware(BaseHTTPMiddleware, dispatch=guard),
        ],
    )


def _answer(request: Request, name: str, count: int, describe: Callable[[int], Any]) -> Response:
    text = request.query_params.get(name, "")
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else count
    if number >= count:
        return JSONResponse({"error": f"{name} is {text[:20]!r}: give a number below {count}"}, status_code=404)
    return JSONResponse(describe(number))
