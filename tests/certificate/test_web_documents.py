"""Documents by address: bounded, only http(s), and nothing secret in what an error says."""

from __future__ import annotations

from pathlib import Path

import pytest

from certificate.loopback import Answer, served
from dpmerge.certificate.web_documents import MOST_REDIRECTS, fetched, read_document, shown
from dpmerge.errors import CannotReadError, InvalidInputError


def test_a_file_and_an_address_are_read_alike(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"content")
    with served({"/it": Answer(b"content")}) as where:
        assert read_document(f"{where}/it", 100, "it") == read_document(tmp_path / "it", 100, "it") == b"content"


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://host/x", "data://x", "http://", "https:///x", "http://[x"]
)
def test_an_address_of_another_kind_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="such as https://"):
        read_document(url, 100, "it")


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidInputError, match="without a name or password") as error:
        read_document("https://ann:s3cret@example.org/x", 100, "it")
    assert "s3cret" not in str(error.value)
    assert "ann" not in str(error.value)


def test_what_is_shown_of_an_address_has_no_secrets() -> None:
    assert shown("https://ann:s3cret@example.org:81/x?token=s3cret#s3cret") == "https://example.org:81/x"


@pytest.mark.parametrize(("size", "fits"), [(100, True), (101, False)])
def test_a_document_beyond_the_limit_is_refused(size: int, fits: bool) -> None:
    with served({"/it": Answer(b"x" * size)}) as where:
        if fits:
            assert len(fetched(f"{where}/it", 100, "it")) == size
        else:
            with pytest.raises(InvalidInputError, match="at most 100 bytes"):
                fetched(f"{where}/it", 100, "it")


def test_an_answer_that_ends_too_early_is_refused() -> None:
    with (
        served({"/it": Answer(b"half", length=8)}) as where,
        pytest.raises(CannotReadError, match="too early"),
    ):
        fetched(f"{where}/it", 100, "it")


def test_a_redirect_is_followed_to_http_and_to_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "it").write_bytes(b"secret")
    to = {
        "/file": f"file://{tmp_path}/it",
        "/ftp": "ftp://127.0.0.1/it",
        "/data": "data:text/plain,secret",
        "/password": "http://ann:s3cret@127.0.0.1/it",
    }
    pages = {path: Answer(status=302, headers={"Location": target}) for path, target in to.items()}
    with served({**pages, "/moved": Answer(status=301, headers={"Location": "/it"}), "/it": Answer(b"it")}) as where:
        assert fetched(f"{where}/moved", 100, "it") == b"it"
        for path in to:
            with pytest.raises(CannotReadError) as error:
                fetched(where + path, 100, "it")
            assert "s3cret" not in str(error.value)


@pytest.mark.parametrize(("steps", "fits"), [(MOST_REDIRECTS, True), (MOST_REDIRECTS + 1, False)])
def test_redirects_come_to_an_end(steps: int, fits: bool) -> None:
    pages = {f"/{step}": Answer(status=302, headers={"Location": f"/{step - 1}"}) for step in range(1, steps + 1)}
    with served({**pages, "/0": Answer(b"it")}) as where:
        if fits:
            assert fetched(f"{where}/{steps}", 100, "it") == b"it"
        else:
            with pytest.raises(CannotReadError, match="cannot be read"):
                fetched(f"{where}/{steps}", 100, "it")


def test_a_request_with_content_is_sent_nowhere_else() -> None:
    posted: list[bytes] = []

    def take(content: bytes) -> Answer:
        posted.append(content)
        return Answer(b"it")

    moved = Answer(status=307, headers={"Location": "/it"})
    with served({"/it": take, "/moved": moved, "/found": Answer(status=302, headers={"Location": "/it"})}) as where:
        assert fetched(f"{where}/it", 100, "it", content=b"question") == b"it"
        for path in ("/moved", "/found"):
            with pytest.raises(CannotReadError, match="cannot be read"):
                fetched(where + path, 100, "it", content=b"question")
    assert posted == [b"question"]


def test_a_document_that_takes_too_long_is_given_up() -> None:
    with (
        served({"/it": Answer(b"it")}) as where,
        pytest.raises(CannotReadError, match="cannot be read"),
    ):
        fetched(f"{where}/it", 100, "it", longest=1e-9)
