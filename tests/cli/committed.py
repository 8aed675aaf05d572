"""A campaign's committed versions in a store, as far as curves need them."""

from __future__ import annotations

import math
from pathlib import Path

from anabasis.campaign.records import VersionManifest, keys
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore

SECONDS_PER_ROUND = 4.0
TOKENS_PER_ROUND = 1_000


def write_versions(
    folder: Path, campaign: str, *, first: int, last: int, ended_at: float, rollbacks: frozenset[int] = frozenset()
) -> ObjectStore:
    """Versions first..last, one each `SECONDS_PER_ROUND`, the last at `ended_at`; returns the store's root."""
    root = open_store(folder.as_uri())
    store = root.child(keys.campaign_root(campaign))
    for version in range(first, last + 1):
        merged = version > 0 and version not in rollbacks
        manifest = VersionManifest(
            campaign=campaign,
            version=version,
            parent=version - 1 if version else None,
            kind="merge" if merged else ("rollback" if version else "initial"),
            chain=f"{version:064d}",
            fingerprint=f"{version:032d}",
            offsets={"0": version},
            plan=None,
            loss=2 + 5 * math.exp(-version / 20) if merged else None,
            validation_loss=2.1 if version and version % 10 == 0 else None,
            tokens_total=version * TOKENS_PER_ROUND,
            merged_rounds=version - len([one for one in rollbacks if one <= version]),
            committed_at=ended_at - (last - version) * SECONDS_PER_ROUND,
        )
        store.put(keys.version(version), manifest.model_dump_json().encode())
    return root
