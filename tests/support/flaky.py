"""Stores that fail: a proxy in front of an S3 server, a wrapper around any store, and a disk that is really full."""

from __future__ import annotations

import http.client
import os
import random
import socket
import struct
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, TypeVar

import pytest

from anabasis.errors import StoreUnavailable
from anabasis.storage.base import ObjectInfo, ObjectStore

HOST = "127.0.0.1"
UPSTREAM_SECONDS = 60.0

Fault = Literal["pass", "hang", "cut", "lose", "error", "error_after"]
"""What happens to a request: `hang` = no answer until the fault is over; `cut` = the connection breaks before the
server sees it; `lose` = the server does it and the connection breaks before the answer; `error` = 503 instead of the
server; `error_after` = the server does it, and 500 is answered."""

T = TypeVar("T")


class FaultProxy:
    """An HTTP proxy in front of one server, whose faults are switched on and off while it runs.

    Use as a context. `endpoint` takes the server's place; the requests' signatures stay valid.

    Attributes:
        seen: how often each fault has happened.
    """

    def __init__(self, upstream_port: int, *, seed: int = 0) -> None:
        self.upstream_port = upstream_port
        self.seen: Counter[str] = Counter()
        self._dice = random.Random(seed)
        self._guard = threading.Lock()
        self._fault: Fault = "pass"
        self._share = 1.0
        self._methods: frozenset[str] | None = None
        self._left: int | None = None
        self._over = threading.Event()
        self._connections: set[socket.socket] = set()
        self._server: ThreadingHTTPServer | None = None
        self.port = 0

    def __enter__(self) -> FaultProxy:
        self.accept()
        return self

    def __exit__(self, *_: object) -> None:
        self.refuse()

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    def set(
        self, fault: Fault, *, share: float = 1.0, methods: frozenset[str] | None = None, times: int | None = None
    ) -> None:
        """From now on, this happens to a share of the requests (of these methods; at most so many times)."""
        with self._guard:
            self._over.set()  # whoever hangs is let go
            self._over = threading.Event()
            self._fault, self._share, self._methods, self._left = fault, share, methods, times

    def refuse(self) -> None:
        """Nobody listens any more, and open connections break."""
        with self._guard:
            server, self._server = self._server, None
            self._over.set()
        if server is not None:
            server.shutdown()
            server.server_close()
        with self._guard:
            connections, self._connections = self._connections, set()
        for connection in connections:
            _break(connection)

    def accept(self) -> None:
        """Listen (again), on the same port as before."""
        if self._server is None:
            self._server = _Server((HOST, self.port), _handler_of(self))
            self.port = int(self._server.server_address[1])
            threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True, name="proxy").start()

    def choose(self, method: str) -> tuple[Fault, threading.Event]:
        """What happens to the next request, and the event that ends it."""
        with self._guard:
            chosen: Fault = self._fault
            applies = self._methods is None or method in self._methods
            if not applies or self._left == 0 or self._dice.random() >= self._share:
                chosen = "pass"
            elif self._left is not None:
                self._left -= 1
            self.seen[chosen] += 1
            return chosen, self._over

    def opened(self, connection: socket.socket) -> None:
        with self._guard:
            self._connections.add(connection)

    def closed(self, connection: socket.socket) -> None:
        with self._guard:
            self._connections.discard(connection)


class _Server(ThreadingHTTPServer):
    request_queue_size = 256  # the default of 5 makes concurrent clients wait for retransmissions
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: object, client_address: object) -> None:  # pragma: no cover
        """Broken connections are what this is for."""


def _handler_of(proxy: FaultProxy) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = 1 << 16  # else small answers wait for delayed acknowledgements

        def setup(self) -> None:
            super().setup()
            proxy.opened(self.connection)

        def finish(self) -> None:
            proxy.closed(self.connection)
            with suppress(OSError, ValueError):
                super().finish()

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle_expect_100(self) -> bool:
            answered = super().handle_expect_100()
            self.wfile.flush()  # else the client waits a second before it sends the body
            return answered

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            fault, over = proxy.choose(self.command)
            if fault == "hang":
                over.wait()
            if fault in {"hang", "cut"}:
                self._drop()
                return
            answer = None if fault == "error" else self._forward(body)
            if fault == "lose" or (answer is None and fault != "error"):
                self._drop()
                return
            if answer is None or fault == "error_after":
                self._refuse(503 if fault == "error" else 500)
                return
            self._relay(*answer)

        do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = handle_any  # noqa: N815  (names that http.server looks for)

        def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes] | None:
            upstream = http.client.HTTPConnection(HOST, proxy.upstream_port, timeout=UPSTREAM_SECONDS)
            try:
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    if name.lower() not in {"connection", "expect"}:
                        upstream.putheader(name, value)
                upstream.endheaders(body)
                answer = upstream.getresponse()
                return answer.status, answer.getheaders(), answer.read()
            except (OSError, http.client.HTTPException):
                return None  # the server is down: so is the proxy for this request
            finally:
                upstream.close()

        def _relay(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            for name, value in headers:
                if name.lower() not in {"connection", "transfer-encoding", "content-length"}:
                    self.send_header(name, value)
            lengths = [value for name, value in headers if name.lower() == "content-length"]
            self.send_header("Content-Length", lengths[0] if self.command == "HEAD" and lengths else str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _refuse(self, status: int) -> None:
            self.send_response_only(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def _drop(self) -> None:
            self.close_connection = True
            _break(self.connection)

    return Handler


def _break(connection: socket.socket) -> None:
    """Reset the connection, as when a machine fails: no orderly end that a client could take for an answer."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()


class FlakyStore:
    """Any store, failing with `StoreUnavailable`: all the time while `down`, else by chance.

    Attributes:
        down: every call fails, before it does anything.
        before: share of the calls that fail before they do anything.
        after: share of the calls that do it, and fail then (the answer is lost).
        calls: by method; failures: how many failed.
    """

    def __init__(self, store: ObjectStore, *, seed: int = 0, before: float = 0.0, after: float = 0.0) -> None:
        self.store = store
        self.down = False
        self.before = before
        self.after = after
        self.calls: Counter[str] = Counter()
        self.failures = 0
        self._dice = random.Random(seed)
        self._guard = threading.Lock()
        self._parent: FlakyStore | None = None

    @property
    def url(self) -> str:
        return self.store.url

    def child(self, prefix: str) -> FlakyStore:
        """Fails with this one: same switch, same shares, same dice, same counts."""
        below = FlakyStore(self.store.child(prefix))
        below._parent = self._parent or self
        return below

    def get(self, key: str, *, start: int = 0, length: int | None = None) -> bytes:
        return self._do("get", lambda: self.store.get(key, start=start, length=length))

    def get_into(self, key: str, buffer: memoryview, *, start: int = 0) -> int:
        return self._do("get", lambda: self.store.get_into(key, buffer, start=start))

    def get_with_etag(self, key: str) -> tuple[bytes, str]:
        return self._do("get_with_etag", lambda: self.store.get_with_etag(key))

    def head(self, key: str) -> ObjectInfo | None:
        return self._do("head", lambda: self.store.head(key))

    def put(
        self,
        key: str,
        value: bytes | bytearray | memoryview,
        *,
        if_absent: bool = False,
        if_match: str | None = None,
    ) -> str:
        return self._do("put", lambda: self.store.put(key, value, if_absent=if_absent, if_match=if_match))

    def list(self, prefix: str = "", *, start_after: str = "") -> list[ObjectInfo]:
        return self._do("list", lambda: self.store.list(prefix, start_after=start_after))

    def delete(self, key: str) -> None:
        self._do("delete", lambda: self.store.delete(key))

    def delete_prefix(self, prefix: str) -> int:
        return self._do("delete_prefix", lambda: self.store.delete_prefix(prefix))

    def _do(self, method: str, call: Callable[[], T]) -> T:
        switch = self._parent or self
        with switch._guard:
            switch.calls[method] += 1
            before = switch.down or switch._dice.random() < switch.before
            after = switch._dice.random() < switch.after
            switch.failures += before or after
        if before:
            raise StoreUnavailable(f"{method}: no answer")
        result = call()
        if after:
            raise StoreUnavailable(f"{method}: the answer was lost")
        return result


@contextmanager
def small_disk(folder: Path, *, size_bytes: int) -> Iterator[Path]:
    """A file system of this size, mounted at the folder (made if need be). Skips the test where nobody may mount."""
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
