"""Reads what a campaign left in the store, piece by piece: a piece that is missing or corrupt is named, not fatal.

A store that does not answer *is* fatal (`StoreUnavailable`, `StoreDenied`): a report with holes from a bad
connection would look like a campaign with holes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from anabasis.campaign.records import CheckpointManifest, ModelVersion, Roster, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec
from anabasis.campaign.status import Incident
from anabasis.errors import AnabasisError, CorruptData, InvalidSpec, ObjectNotFound
from anabasis.storage import checkpoints, registry, versions
from anabasis.storage.base import ObjectStore

READERS = 8
"""Concurrent reads: hides the latency of a remote store (a few ms each) without crowding a small machine."""

WINDOW = 64
"""Manifests held at a time: one is up to ~1 kB per contributor, so 2,000 versions of 100 nodes must not pile up."""

T = TypeVar("T")

_VERSION_KEY = re.compile(r"versions/(\d+)\.json")
_UNREADABLE = (CorruptData, ObjectNotFound, InvalidSpec, ValidationError, ValueError)


@dataclass(frozen=True, slots=True)
class LedgerRecord:
    """A campaign run's last word in the journal.

    Written as `{"kind": "ledger", "paid_node_seconds": …, "cost": …, "ledger": {bucket: seconds}, "outcome": …,
    "failure": …, "at": …}` beside the incidents; only the first three are required.
    """

    paid_node_seconds: float
    buckets: dict[str, float]
    cost: float | None
    outcome: str
    failure: str
    at: float | None


@dataclass(slots=True)
class Journal:
    """The journal in order. `incidents` are (run, incident): a ledger record ends a run."""

    incidents: list[tuple[int, Incident]] = field(default_factory=list)
    ledgers: list[LedgerRecord] = field(default_factory=list)


@dataclass(slots=True)
class Source:
    """One campaign in one store; `problems` collects what could not be read.

    Args:
        root: the store's root; campaign: its name.
    """

    root: ObjectStore
    campaign: str
    problems: list[str] = field(default_factory=list)
    store: ObjectStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.root.child(keys.campaign_root(self.campaign))

    def _attempt(self, what: str, read: Callable[[], T]) -> T | None:
        try:
            return read()
        except _UNREADABLE as error:
            self.problems.append(_named(what, error))
            return None

    def spec(self) -> CampaignSpec | None:
        if self.store.head(keys.SPEC) is None:
            self.problems.append(f"{keys.SPEC}: is missing; the report does not know what was asked for")
            return None
        return self._attempt(keys.SPEC, lambda: versions.read_spec(self.store))

    def roster(self) -> Roster | None:
        return self._attempt(keys.ROSTER, lambda: versions.read_roster(self.store))

    def manifests(self) -> Iterator[VersionManifest]:
        """Readable version manifests in order; gaps and unreadable ones go to `problems`."""
        numbers = self._version_numbers()
        missing = sorted(set(range(numbers[-1] + 1)) - set(numbers)) if numbers else []
        if missing:
            self.problems.append(f"versions: {_ranges(missing)} missing although {numbers[-1]} exists")
        with ThreadPoolExecutor(READERS, thread_name_prefix="report") as pool:
            remaining = iter(numbers)
            while window := list(islice(remaining, WINDOW)):
                for result in pool.map(self._manifest, window):
                    if isinstance(result, VersionManifest):
                        yield result
                    else:
                        self.problems.append(result)

    def _version_numbers(self) -> list[int]:
        numbers: list[int] = []
        for info in self.store.list("versions/"):
            match = _VERSION_KEY.fullmatch(info.key)
            if match:
                numbers.append(int(match.group(1)))
            else:
                self.problems.append(f"{info.key}: is not a version manifest; remove it")
        return sorted(numbers)

    def _manifest(self, number: int) -> VersionManifest | str:
        try:
            return versions.read_version(self.store, number)
        except _UNREADABLE as error:
            return _named(keys.version(number), error)

    def journal(self) -> Journal:
        journal = Journal()
        for info in self.store.list("journal/"):
            entries = self._attempt(info.key, lambda key=info.key: _json_list(self.store.get(key)))
            for index, entry in enumerate(entries or []):
                self._attempt(f"{info.key} entry {index}", lambda entry=entry: _add_entry(journal, entry))
        return journal

    def checkpoints(self) -> list[tuple[int, CheckpointManifest | str]]:
        """(version, manifest or why it cannot be read), oldest first."""
        found: list[tuple[int, CheckpointManifest | str]] = []
        for number in self._attempt("checkpoints", lambda: checkpoints.list_checkpoints(self.store)) or []:
            try:
                found.append((number, checkpoints.read_checkpoint(self.store, number)))
            except _UNREADABLE as error:
                found.append((number, _one_line(error)))
                self.problems.append(_named(keys.checkpoint(number), error))
        return found

    def models(self) -> list[ModelVersion]:
        published = self._attempt("models", lambda: registry.list_models(self.root)) or []
        return [model for model in published if model.campaign == self.campaign]

    def audit(self) -> list[str]:
        """Problems that the audit of the offsets found; an audit that could not run is one too."""
        try:
            return versions.audit_offsets(self.store)
        except _UNREADABLE as error:
            return [f"the audit could not finish: {_one_line(error)}"]

    def is_empty(self) -> bool:
        """Nothing at all is stored under this name."""
        return not (self.store.head(keys.SPEC) or self.store.list("versions/") or self.store.list("journal/"))


def _json_list(data: bytes) -> list[Any]:
    value = json.loads(data)
    if not isinstance(value, list):
        raise CorruptData(f"holds {type(value).__name__}, not a list of entries")
    return cast("list[Any]", value)


def _add_entry(journal: Journal, entry: Any) -> None:
    if not isinstance(entry, dict):
        raise CorruptData(f"is {type(entry).__name__}, not an object")
    record = cast("dict[str, Any]", entry)
    if record.get("kind") == "ledger":
        journal.ledgers.append(_ledger_record(record))
    else:
        journal.incidents.append((len(journal.ledgers), Incident.model_validate(record)))


def _ledger_record(record: dict[str, Any]) -> LedgerRecord:
    try:
        return LedgerRecord(
            paid_node_seconds=float(record["paid_node_seconds"]),
            buckets={str(name): float(seconds) for name, seconds in record["ledger"].items()},
            cost=None if record.get("cost") is None else float(record["cost"]),
            outcome=str(record.get("outcome") or ""),
            failure=str(record.get("failure") or ""),
            at=None if record.get("at") is None else float(record["at"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise CorruptData(f"is no ledger record ({type(error).__name__}: {error})") from None


def _named(what: str, error: Exception) -> str:
    """The problem with the name of the piece in front, unless the error has it there already."""
    text = _one_line(error)
    return text if text.startswith(what) else f"{what}: {text}"


def _one_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return f"{where}: {first['msg']}" if where else first["msg"]
    text = " ".join(str(error).split())
    return text if isinstance(error, AnabasisError) and text else f"{type(error).__name__}: {text}"


def _ranges(numbers: list[int]) -> str:
    """`3, 5-7, 9` of sorted numbers."""
    parts: list[str] = []
    start = end = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == end + 1:
            end = number
            continue
        parts.append(str(start) if start == end else f"{start}-{end}")
        if number is not None:
            start = end = number
    return ", ".join(parts[:10]) + (f" and {len(parts) - 10} more gaps" if len(parts) > 10 else "")
