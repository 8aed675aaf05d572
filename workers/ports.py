"""TCP ports of this machine: whether one can be had, and who has it."""

from __future__ import annotations

import socket

import psutil

from anabasis.errors import StackError
from workers.temporal_server import HOST, free_port

PORTS = 65_536
_SEARCHED_PORTS = 50
"""How far above a taken port the suggestion for another one may lie."""


def is_free(port: int) -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket() as probe:
        # As servers do: a connection in TIME_WAIT does not keep a port from being listened on again.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def holder(port: int) -> str:
    """Who listens on a port, as far as this user may know: `process 42 (temporal)`, or an unknown process."""
    for process in psutil.process_iter(["name"]):
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.Error:  # another user's process, or one that has just ended
            continue
        for connection in connections:
            if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                return f"process {process.pid} ({process.info['name']})"
    return "a process of another user"


def choose(port: int, *, option: str, purpose: str) -> int:
    """The port to use: `port` itself if it can be had, a free one for 0.

    Raises:
        StackError: it is taken; says by whom, and which option to use instead.
    """
    if port == 0:
        return free_port()
    if is_free(port):
        return port
    raise StackError(
        f"port {port} for {purpose} is taken by {holder(port)}: free it, or use {option} {next_free(port)}"
    )


def next_free(port: int) -> int:
    """The next port above that can be had now; 0 (any) when there is none near."""
    return next((near for near in range(port + 1, min(port + _SEARCHED_PORTS, PORTS)) if is_free(near)), 0)
