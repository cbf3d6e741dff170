"""The routes, and who is answered."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tensorprobe.serve.application import make_application
from tensorprobe.serve.shown import ShownComparison
from tests.serve.recorded import make_page, write_run

TOKEN = "s3cret"
PAGE = b"<!doctype html><title>page</title>"


@pytest.fixture
def client(tmp_path: Path) -> TestClient:
    shown = ShownComparison(make_page(write_run(tmp_path / "good"), write_run(tmp_path / "bad")))
    return TestClient(make_application(shown, PAGE, TOKEN), base_url="http://127.0.0.1:8000")


def test_the_page_is_shown_to_who_has_the_token(client: TestClient) -> None:
    answer = client.get("/", params={"token": TOKEN})
    assert (answer.status_code, answer.content) == (200, PAGE)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "/api/pair?row=0", "/api/source?call=0", "/etc/passwd"])
@pytest.mark.parametrize("token", [None, "", "wrong", "s3cre", "ü", "s3cret "])
def test_without_the_token_nothing_is_shown(client: TestClient, path: str, token: str | None) -> None:
    answer = client.get(path, params=None if token is None else {"token": token})
    assert answer.status_code == 403
    assert answer.text == "The token is missing or wrong. Open the address that tensorprobe serve printed.\n"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "169.254.169.254", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(client: TestClient, host: str) -> None:
    answer = client.get("/", params={"token": TOKEN}, headers={"Host": host})
    assert answer.status_code == 400
    assert PAGE not in answer.content


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost:8000", "localhost"])
def test_this_machine_is_answered_by_its_own_names(client: TestClient, host: str) -> None:
    assert client.get("/", params={"token": TOKEN}, headers={"Host": host}).status_code == 200


def test_a_pair_is_reduced_when_it_is_asked_for(client: TestClient) -> None:
    answer = client.get("/api/pair", params={"row": 0, "token": TOKEN})
    assert answer.status_code == 200
    assert answer.json()["metrics"]["is_equal"] is True
    assert sum(answer.json()["histogram"]["reference"]) == 6


def test_a_pair_that_cannot_be_shown_is_answered_with_the_reason(client: TestClient) -> None:
    answer = client.get("/api/pair", params={"row": 1, "token": TOKEN})
    assert answer.status_code == 200
    assert "there is no file of" in answer.json()["reason"]


def test_the_source_of_a_call_is_shown(client: TestClient) -> None:
    answer = client.get("/api/source", params={"call": 0, "token": TOKEN})
    assert answer.json()["reference"]["location"] == "model.py:18 in forward: x = self.fc(x)"


@pytest.mark.parametrize("row", ["4", "-1", "", "x", "1.0", "../../etc/passwd", "٣", "9" * 400, "0x1"])
def test_a_row_that_is_not_there_is_no_row(client: TestClient, row: str) -> None:
    answer = client.get("/api/pair", params={"row": row, "token": TOKEN})
    assert answer.status_code == 404
    assert answer.json() == {"error": f"row is {row[:20]!r}: give a number below 4"}


@pytest.mark.parametrize(
    "path", ["/../../etc/passwd", "/dump_tensor_data/x.npy", "/api/", "/api/pair/0", "//etc/passwd"]
)
def test_no_path_is_looked_up(client: TestClient, path: str) -> None:
    assert client.get(path, params={"token": TOKEN}).status_code == 404


def test_nothing_is_kept_framed_or_told_to_others(client: TestClient) -> None:
    for token, status in ((TOKEN, 200), ("wrong", 403)):
        answer = client.get("/", params={"token": token})
        assert answer.status_code == status
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["content-security-policy"] == "frame-ancestors 'none'"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in answer.headers


def test_nothing_can_be_written(client: TestClient) -> None:
    assert client.post("/", params={"token": TOKEN}).status_code == 405
