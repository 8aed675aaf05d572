"""A real Temporal dev server for tests, with the same command line as the embedded stack."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from temporalio.client import Client

from anabasis.errors import TemporalUnavailable
from workers.connect import connect
from workers.temporal_server import HOST, command_line, free_port, prepare_namespace

START_SECONDS = 30.0
"""A dev server answers after 0.2 to 0.5 s; loaded test machines have been seen to take several seconds."""

START_ATTEMPTS = 3
"""A free port can be taken by another test process between finding and using it."""


class TemporalServer:
    """Start it with `TemporalServer.started(folder)`; tests usually take a fixture from conftest instead."""

    def __init__(self, folder: Path, *, dynamic_config: Mapping[str, str] | None = None, ui: bool = False) -> None:
        self.folder = folder
        self.port = free_port()
        self.ui_port = free_port() if ui else None
        self.database = folder / "temporal.db"
        self.log = folder / "temporal.log"
        self._dynamic_config = dict(dynamic_config or {})
        self._popen: subprocess.Popen[bytes] | None = None

    @classmethod
    def started(
        cls, folder: Path, *, dynamic_config: Mapping[str, str] | None = None, ui: bool = False
    ) -> TemporalServer:
        """A server that answers, with search attributes registered."""
        folder.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, START_ATTEMPTS + 1):
            server = cls(folder, dynamic_config=dynamic_config, ui=ui)
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
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def ui_url(self) -> str:
        assert self.ui_port is not None, "start it with ui=True"
        return f"http://{HOST}:{self.ui_port}"

    @property
    def env(self) -> dict[str, str]:
        """What a subprocess needs in its environment to use this server."""
        return {"TEMPORAL_ADDRESS": self.address, "TEMPORAL_NAMESPACE": "default"}

    @property
    def pid(self) -> int:
        assert self._popen is not None
        return self._popen.pid

    def start(self) -> None:
        """Start on the same port and database, and wait until it answers."""
        line = command_line(
            port=self.port, ui_port=self.ui_port, database=self.database, dynamic_config=self._dynamic_config
        )
        with self.log.open("ab") as output:
            self._popen = subprocess.Popen(
                line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, start_new_session=True
            )
        # In a thread: fixtures are synchronous, and whoever calls this may be inside a running loop already.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(self._until_it_answers())).result()

    async def _until_it_answers(self) -> None:
        try:
            client = await connect(address=self.address, patience_seconds=START_SECONDS)
            await prepare_namespace(client)
        except TemporalUnavailable as error:
            log = self.log.read_text(errors="replace")
            raise AssertionError(f"Temporal did not start on port {self.port}:\n{log[-4000:]}") from error

    def kill(self) -> None:
        """kill -9: as a power cut for the server process."""
        if self._popen is not None:
            self._popen.kill()
            self._popen.wait(START_SECONDS)

    def restart(self) -> None:
        """kill -9 and start again with the same port and database."""
        self.kill()
        self.start()

    async def client(self) -> Client:
        """A new client (each event loop needs its own)."""
        return await connect(address=self.address)
