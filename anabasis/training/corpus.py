"""Where text comes from: the standard library's source, files and folders, and whatever smart-open opens.

A source is a list of parts in a fixed order. Its text is the parts joined by a NUL byte, which no text contains,
so that a model can learn where documents end.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote, urlsplit

from anabasis.errors import InvalidSpec
from anabasis.training.source_errors import explain_failure

STDLIB = "python-stdlib"

Progress = Callable[[str], None]
"""Called often, with words about what is being done: heartbeats come from it."""

SEPARATOR = b"\0"

CHUNK_BYTES = 1 << 18
"""Read at a time: small enough that progress is reported several times a second over a slow line."""

PROBE_BYTES = 1 << 10
"""Read to see that a source can be read, and that a file of a folder is text."""

NETWORK_TIMEOUT_SECONDS = 30.0
"""For a web server to answer; reads that stall longer count as an outage."""

_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "lib-dynload"}
)
_MACHINE_SPECIFIC = ("_sysconfigdata", "sitecustomize", "usercustomize", "_distutils_system_mod")
"""Files that installations add: with them, the same Python would give different data on different machines."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a `data.url` stands for: URLs or paths of its parts, in order, and their size where it is known."""

    url: str
    parts: list[str]
    size_bytes: int | None = None


def check_source(url: str) -> None:
    """Quickly check that a source can be read: opens it and reads a few bytes.

    Raises:
        InvalidSpec: (path `data.url`) it cannot be found, opened or read, or is empty.
    """
    source = find_source(url)
    try:
        with _open(source.parts[0]) as stream:
            start = stream.read(PROBE_BYTES)
    except Exception as error:  # smart-open's backends raise whatever their SDKs raise
        raise explain_failure(error, url=url, outage_is_final=True) from error
    if not start and len(source.parts) == 1:
        raise InvalidSpec([("data.url", f"{url!r} is empty")])


def find_source(url: str) -> Source:
    """The parts of a source.

    Raises:
        InvalidSpec: (path `data.url`) a local path that does not exist or is neither a file nor a folder with text.
    """
    if url == STDLIB:
        root = Path(sysconfig.get_paths()["stdlib"])
        return _folder(url, [path for path in _walk(root, skipped=_SKIPPED_FOLDERS) if _is_stdlib_source(path)])
    path = _local_path(url)
    if path is None:
        return Source(url=url, parts=[url])
    if path.is_dir():
        return _folder(url, [entry for entry in _walk(path) if _is_text_file(entry)])
    if not path.exists():
        raise InvalidSpec([("data.url", f"{url!r}: there is no such file or folder on this machine")])
    if not path.is_file():
        raise InvalidSpec([("data.url", f"{url!r} is neither a file nor a folder")])
    return Source(url=url, parts=[str(path)], size_bytes=path.stat().st_size)


def read_source(
    source: Source, *, max_bytes: int | None = None, on_progress: Progress | None = None
) -> Iterator[bytes]:
    """The source's text in chunks of at most `CHUNK_BYTES`.

    Args:
        on_progress: called for every chunk, with words.

    Raises:
        InvalidSpec: (path `data.url`) a part cannot be read, or is damaged.
        StoreUnavailable: the network or the server does not answer now.
    """
    left = max_bytes
    done = 0
    for chunk in _joined(source):
        piece = chunk if left is None else chunk[:left]
        if not piece:
            return
        yield piece
        done += len(piece)
        left = None if left is None else left - len(piece)
        if on_progress:
            on_progress(f"read {done / 1e6:.1f} MB of {source.url}")


def text_blocks(chunks: Iterator[bytes], *, block_bytes: int) -> Iterator[bytes]:
    """Regroup chunks into blocks of at most `block_bytes`, cut as `split_text` would cut the whole."""
    held = b""
    for chunk in chunks:
        held += chunk
        while len(held) > block_bytes:
            cut = _cut(held, first=0, limit=block_bytes)
            yield held[:cut]
            held = held[cut:]
    if held:
        yield held


def split_text(text: bytes, *, limit: int) -> Iterator[bytes]:
    """Cut text into pieces of at most `limit` bytes: after a line's end where there is one, else between characters."""
    first = 0
    while first < len(text):
        cut = _cut(text, first=first, limit=limit)
        yield text[first:cut]
        first = cut


def _cut(text: bytes, *, first: int, limit: int) -> int:
    """Where the piece of at most `limit` bytes that begins at `first` ends."""
    end = first + limit
    if len(text) <= end:
        return len(text)
    line_end = text.rfind(b"\n", first, end)
    if line_end >= 0:
        return line_end + 1
    cut = end
    while cut > first + 1 and end - cut < 3 and text[cut] & 0xC0 == 0x80:  # inside a UTF-8 character
        cut -= 1
    return cut if text[cut] & 0xC0 != 0x80 else end  # no UTF-8 at all


def _joined(source: Source) -> Iterator[bytes]:
    for number, part in enumerate(source.parts):
        if number:
            yield SEPARATOR
        try:
            with _open(part) as stream:
                while chunk := stream.read(CHUNK_BYTES):
                    yield chunk
        except Exception as error:  # smart-open's backends raise whatever their SDKs raise
            raise explain_failure(error, url=part, outage_is_final=False) from error


def _open(part: str) -> IO[bytes]:
    import smart_open

    scheme = urlsplit(part).scheme
    parameters: dict[str, Any] = {}
    if scheme in ("http", "https"):
        parameters["timeout"] = NETWORK_TIMEOUT_SECONDS
    elif scheme.startswith("s3"):
        from anabasis.storage.s3_connection import Connection

        parameters["client"] = Connection.from_environment(bucket=urlsplit(part).netloc).client()
    return cast("IO[bytes]", smart_open.open(part, "rb", transport_params=parameters))


def _local_path(url: str) -> Path | None:
    parts = urlsplit(url)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.scheme and len(parts.scheme) != 1:  # one letter: a Windows drive
        return None
    return Path(url).expanduser()


def _folder(url: str, paths: list[Path]) -> Source:
    if not paths:
        raise InvalidSpec([("data.url", f"{url!r} has no text files in it")])
    return Source(url=url, parts=[str(path) for path in paths], size_bytes=sum(path.stat().st_size for path in paths))


def _walk(root: Path, *, skipped: frozenset[str] = frozenset()) -> list[Path]:
    """Regular files under a folder in the order of their relative names; hidden ones and links are left out."""
    found: list[Path] = []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in skipped and not name.startswith(".")]
        paths = (Path(folder, name) for name in names if not name.startswith("."))
        found.extend(path for path in paths if path.is_file() and not path.is_symlink())
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())


def _is_stdlib_source(path: Path) -> bool:
    return path.suffix == ".py" and not path.name.startswith(_MACHINE_SPECIFIC)


def _is_text_file(path: Path) -> bool:
    """Whether the (decompressed) start of a file has no NUL byte. Unreadable files count, to be reported later."""
    with suppress(Exception), _open(str(path)) as stream:
        return SEPARATOR not in stream.read(PROBE_BYTES)
    return True
