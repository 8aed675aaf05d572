from __future__ import annotations

import bz2
import gzip
import http.server
import lzma
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabasis.errors import InvalidSpec, StoreUnavailable
from anabasis.training.corpus import check_source, find_source, read_source, split_text, text_blocks

TEXT = b"".join(b"line %d of a text\n" % number for number in range(40_000))


def read(url: str, *, max_bytes: int | None = None) -> bytes:
    return b"".join(read_source(find_source(url), max_bytes=max_bytes))


def problem_of(url: str) -> str:
    with pytest.raises(InvalidSpec) as caught:
        check_source(url)
    (path, text) = caught.value.problems[0]
    assert path == "data.url"
    assert "\n" not in text
    return text


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = int(self.path.strip("/").split(".")[0])
        self.send_response(status)
        self.send_header("Content-Length", str(len(TEXT) if status == 200 else 0))
        self.end_headers()
        if status == 200:
            self.wfile.write(TEXT)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def web() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("form", ["{path}", "file://{path}"])
@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_files_are_read_whatever_their_compression(tmp_path: Path, suffix: str, pack: object, form: str) -> None:
    path = tmp_path / f"text.txt{suffix}"
    path.write_bytes(pack(TEXT))  # type: ignore[operator]
    url = form.format(path=path)
    check_source(url)
    assert read(url) == TEXT


def test_the_standard_library_is_a_text_without_tests() -> None:
    source = find_source("python-stdlib")
    names = [Path(part).as_posix() for part in source.parts]
    assert any(name.endswith("/asyncio/base_events.py") for name in names)
    assert not any("/test/" in name or "/site-packages/" in name or "_sysconfigdata" in name for name in names)
    assert names == sorted(names)
    check_source("python-stdlib")
    assert 5_000_000 < (source.size_bytes or 0) < 40_000_000


def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path) -> None:
    for name, text in [("b.txt", b"two"), ("a/z.txt", b"one"), ("c.txt.gz", gzip.compress(b"three"))]:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(text)
    (tmp_path / ".hidden").write_bytes(b"no")
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\0\0")
    (tmp_path / "link.txt").symlink_to(tmp_path / "b.txt")
    assert read(str(tmp_path)) == b"one\0two\0three"


def test_only_so_much_is_read(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    assert read(str(tmp_path / "text"), max_bytes=300_001) == TEXT[:300_001]


def test_progress_is_reported_for_every_chunk(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(TEXT)
    words: list[str] = []
    list(read_source(find_source(str(tmp_path / "text")), on_progress=words.append))
    assert len(words) >= 3
    assert "MB of" in words[-1]


def test_web_servers_are_read(web: str) -> None:
    check_source(f"{web}/200")
    assert read(f"{web}/200") == TEXT


@pytest.mark.parametrize("status", [404, 403, 500, 503])
def test_preflight_reports_a_server_that_refuses(web: str, status: int) -> None:
    assert str(status) in problem_of(f"{web}/{status}")


def test_later_an_outage_is_an_outage_and_a_refusal_is_final(web: str) -> None:
    with pytest.raises(StoreUnavailable, match="does not answer"):
        read(f"{web}/503")
    with pytest.raises(InvalidSpec):
        read(f"{web}/404")


def test_a_server_that_is_not_there(web: str, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}/x"
    assert "cannot be read" in problem_of(url)
    with pytest.raises(StoreUnavailable):
        read(url)


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "not.gz").write_bytes(b"plain text")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    assert "no such file" in problem_of(str(tmp_path / "missing"))
    assert "empty" in problem_of(str(tmp_path / "empty"))
    assert "damaged" in problem_of(str(tmp_path / "not.gz"))
    assert "no text files" in problem_of(str(tmp_path / "folder"))
    assert "neither a file nor a folder" in problem_of(str(tmp_path / "pipe"))
    assert "scheme" in problem_of("gopher://host/x")
    assert "pip install 'smart_open[" in problem_of("gs://bucket/x")


def test_a_torn_file_is_damaged_not_short(tmp_path: Path) -> None:
    (tmp_path / "torn.gz").write_bytes(gzip.compress(os.urandom(1_000_000))[:-2000])
    with pytest.raises(InvalidSpec, match="damaged"):
        read(str(tmp_path / "torn.gz"))


@given(
    text=st.lists(st.sampled_from([b"a", b"\n", "ü".encode(), "🙂".encode(), b"\xff", b"words "]), max_size=200),
    limit=st.integers(4, 40),
    chunk=st.integers(1, 50),
)
def test_blocks_are_the_text_and_do_not_depend_on_its_chunks(text: list[bytes], limit: int, chunk: int) -> None:
    whole = b"".join(text)
    blocks = list(text_blocks((whole[i : i + chunk] for i in range(0, len(whole), chunk)), block_bytes=limit))
    assert b"".join(blocks) == whole
    assert all(0 < len(block) <= limit for block in blocks)
    assert blocks == list(split_text(whole, limit=limit))


@given(text=st.text(max_size=200), limit=st.integers(4, 40))
def test_no_character_is_cut(text: str, limit: int) -> None:
    for piece in split_text(text.encode(), limit=limit):
        piece.decode()
