"""Both ways to compute statistics and hashes: by compiled code, and by its twin in Python."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tensorprobe.capture import native


@pytest.fixture(autouse=True, scope="module", params=["compiled", "python"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Import it, and every test of the file runs twice."""
    compiled = native._compiled
    if request.param == "compiled" and compiled is None:
        pytest.skip("the compiled part was not built: there is no compiler, or TENSORPROBE_NATIVE is 0")
    native._compiled = compiled if request.param == "compiled" else None
    try:
        yield request.param
    finally:
        native._compiled = compiled
