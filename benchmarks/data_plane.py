"""How fast one process turns contributions into a version, against this machine's speed of copying memory.

    python -m benchmarks.data_plane                     # 1, 10 and 100 million parameters
    python -m benchmarks.data_plane --sizes 1 --json benchmarks/results/data_plane.json

A round, as measured, is everything that an aggregator does between the arrival of the last contribution and the
commit: list and read the mailbox, verify hashes, offsets, norms, merge, outer step, quantise, apply, fingerprint,
write the delta durably, commit. `merge` is the arithmetic of it alone. Rates are bytes of float32 parameters per
second, so that they compare with copying the parameters once. Memory is the peak of a round over what the process
had before it loaded the campaign (anonymous pages).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from anabasis.campaign.records import (
    BlobRef,
    ContributionHeader,
    Roster,
    RosterMember,
    TensorLayout,
    VersionManifest,
    keys,
)
from anabasis.campaign.rounds import make_plan
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from anabasis.storage.versions import commit_version, read_version, write_roster, write_spec
from anabasis.training.aggregator import Aggregator
from anabasis.training.chain import next_chain
from anabasis.training.contribution import pack_contribution
from anabasis.training.merge import Merger, Weighted
from anabasis.training.outer import OuterState
from anabasis.training.parameters import BLOCK, ParameterImage, fingerprint, padded

WARMUP_ROUNDS, ROUNDS = 2, 5
COPY_BYTES = 400_000_000
TARGET_SHARE, TARGET_MEMORY = 0.25, 4.0
SEQUENCE_LENGTH, STEPS, BATCH = 128, 10, 8


@dataclass(frozen=True)
class Case:
    """One line of the table. Rates in GB/s of float32 parameters, times in milliseconds, memory × parameter bytes."""

    parameters: int
    contributions: int
    where: str
    merge_rate: float
    round_rate: float
    round_ms: float
    median_ms: float
    extra_memory: float
    share_of_copy: float = 0.0


def copy_rate() -> float:
    """GB/s of `Tensor.copy_` of 400 MB with all of torch's threads: the best of several."""
    source, target = torch.ones(COPY_BYTES // 4), torch.empty(COPY_BYTES // 4)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - started)
    return COPY_BYTES / min(times) / 1e9


def measure(parameters: int, contributions: int, folder: Path, where: str) -> Case:
    """In a process of its own, for honest memory."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="anabasis-benchmark-", dir=folder) as scratch:
        with context.Pool(1, torch.set_num_threads, (1,)) as pool:
            pool.apply(_build, (scratch, parameters, contributions))
        with context.Pool(1, torch.set_num_threads, (1,)) as pool:
            merge_seconds = pool.apply(_time_merge, (parameters, contributions))
        with (
            context.Pool(1, torch.set_num_threads, (1,)) as writer,
            context.Pool(1, torch.set_num_threads, (1,)) as pool,
        ):
            pool.apply(_load, (scratch,))
            times = []
            for version in range(WARMUP_ROUNDS + ROUNDS):
                writer.apply(_post, (scratch, version, parameters, contributions))
                times.append(pool.apply(_round, (version + 1,)))
            last = WARMUP_ROUNDS + ROUNDS
            writer.apply(_post, (scratch, last, parameters, contributions))
            memory = pool.apply(_round_memory, (last + 1,))
    kept = times[WARMUP_ROUNDS:]
    size = 4 * parameters
    return Case(
        parameters=parameters,
        contributions=contributions,
        where=where,
        merge_rate=size / merge_seconds / 1e9,
        round_rate=size / min(kept) / 1e9,
        round_ms=min(kept) * 1e3,
        median_ms=statistics.median(kept) * 1e3,
        extra_memory=memory / size,
    )


# --- what runs in the processes --------------------------------------------------------------------------

_aggregator: Aggregator
_memory_before: int


def _store(scratch: str) -> ObjectStore:
    return open_store(Path(scratch, "store").as_uri()).child(keys.campaign_root("bench"))


def _spec(slots: int) -> CampaignSpec:
    return parse_spec(
        {
            "name": "bench",
            "fleet": {"slots": slots},
            "data": {"partitions": slots, "sequence_length": SEQUENCE_LENGTH},
            "training": {
                "inner_steps": STEPS,
                "batch_size": BATCH,
                "outer_lr": 0.7,
                "outer_momentum": 0.9,
                "dense_warmup_rounds": 0,
                "deterministic": True,
            },
            "target": {"rounds": 1_000_000},
        }
    )


def _build(scratch: str, parameters: int, slots: int) -> None:
    """A campaign at version 0, as `prepare` would leave it."""
    store, spec = _store(scratch), _spec(slots)
    write_spec(store, spec)
    members = [RosterMember(slot=slot, attempt=1, nonce="n") for slot in range(slots)]
    write_roster(
        store,
        Roster(
            campaign="bench",
            generation=1,
            phase="training",
            slots=list(range(slots)),
            members=members,
            target_rounds=spec.target.rounds,
        ),
    )
    image = ParameterImage([TensorLayout(name="weights", shape=[parameters], offset=0)])
    image.flat.normal_(generator=torch.Generator().manual_seed(0))
    digest = hash_bytes(image.file())
    snapshot = BlobRef(key=keys.parameters(digest), hash=digest, size_bytes=len(image.file()))
    store.put(snapshot.key, image.file())
    commit_version(
        store,
        VersionManifest(
            campaign="bench",
            version=0,
            parent=None,
            kind="initial",
            chain=next_chain(None, blob_hash=digest),
            fingerprint=fingerprint(image.flat),
            snapshot=snapshot,
            layout=image.layout,
            offsets={str(slot): 0 for slot in range(slots)},
            plan=make_plan(spec, round_number=0),
        ),
    )


def _payload(parameters: int, slot: int) -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(slot)
    return {
        "q": torch.randint(-127, 128, (parameters,), dtype=torch.int8, generator=made),
        "scale": torch.rand(padded(parameters) // BLOCK, generator=made) * 1e-5,
    }


def _post(scratch: str, version: int, parameters: int, slots: int) -> None:
    """The nodes' part of a round; and what a checkpoint's garbage collection does, so that memory is reused."""
    store = _store(scratch)
    if version >= 2:
        store.delete_prefix(keys.mail_prefix(version - 2))
        store.delete_prefix(f"deltas/{version - 1:06d}/")
    base = read_version(store, version)
    for slot in range(slots):
        lane, samples = str(slot), STEPS * BATCH
        header = ContributionHeader(
            campaign="bench",
            base_version=version,
            base_chain=base.chain,
            slot=slot,
            attempt=1,
            nonce="n",
            steps=STEPS,
            tokens=samples * SEQUENCE_LENGTH,
            loss=4.0,
            consumed={lane: (base.offsets[lane], base.offsets[lane] + samples)},
            train_seconds=1.0,
            sync_seconds=0.1,
            wait_seconds=0.1,
            compression="int8",
            payload_hash="",
        )
        store.put(keys.mail(version, slot, 1), pack_contribution(header, _payload(parameters, slot)))


def _load(scratch: str) -> None:
    global _aggregator, _memory_before  # noqa: PLW0603  (state of the measured process, between its calls)
    _memory_before = _anonymous_memory()
    _aggregator = Aggregator(_store(scratch), identity="benchmark")
    _aggregator.current()


def _round(until: int) -> float:
    started = time.perf_counter()
    result = _aggregator.advance(until_version=until)
    seconds = time.perf_counter() - started
    assert result.version == until, result
    return seconds


def _round_memory(until: int) -> int:
    """Peak of a round over what the process had before the campaign, sampled every millisecond."""
    over, peak = threading.Event(), [_anonymous_memory()]

    def sample() -> None:
        while not over.wait(0.001):
            peak[0] = max(peak[0], _anonymous_memory())

    sampler = threading.Thread(target=sample)
    sampler.start()
    _round(until)
    over.set()
    sampler.join()
    return peak[0] - _memory_before


def _anonymous_memory() -> int:
    """Without file pages, which the kernel takes back when it needs them."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/self/status has no RssAnon")


def _time_merge(parameters: int, contributions: int) -> float:
    image, outer = ParameterImage([TensorLayout(name="w", shape=[parameters], offset=0)]), OuterState(parameters)
    merger = Merger(parameters, compression="int8")
    items = [Weighted(_payload(parameters, slot), 1 / contributions) for slot in range(contributions)]
    times = []
    for _ in range(WARMUP_ROUNDS + ROUNDS):
        started = time.perf_counter()
        merger.step(image, outer, items, lr=0.7, momentum=0.9)
        times.append(time.perf_counter() - started)
    return min(times[WARMUP_ROUNDS:])


# --- output ----------------------------------------------------------------------------------------------


def table(cases: list[Case], copy: float) -> str:
    lines = [
        f"torch {torch.__version__}, {torch.get_num_threads()} threads; copying memory: {copy:.1f} GB/s",
        "",
        "| parameters | contributions | store | merge GB/s | round GB/s | of copy | best ms | median ms | memory × |",
        "| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {case.parameters:,} | {case.contributions} | {case.where} | {case.merge_rate:.2f} | {case.round_rate:.2f} "
        f"| {case.share_of_copy:.0%} | {case.round_ms:.1f} | {case.median_ms:.1f} | {case.extra_memory:.2f} |"
        for case in cases
    ]
    lines += ["", f"Target: round ≥ {TARGET_SHARE:.0%} of copying, memory ≤ {TARGET_MEMORY:g} × parameter bytes."]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=float, nargs="+", default=[1, 10, 100], help="millions of parameters")
    parser.add_argument("--contributions", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="folder for the store on disk")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--markdown", type=Path, help="write the table here")
    options = parser.parse_args()
    places = [("disk", options.disk)]
    if os.access("/dev/shm", os.W_OK):  # noqa: S108  (a store without the cost of a disk)
        places.append(("memory", Path("/dev/shm")))  # noqa: S108
    copy = copy_rate()
    cases: list[Case] = []
    for size in options.sizes:
        for contributions in options.contributions:
            for where, folder in places:
                cases.append(measure(int(size * 1e6), contributions, folder, where))
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    copy = max(copy, copy_rate())  # again: what else the machine did at the start must not flatter the shares
    cases = [replace(case, share_of_copy=case.round_rate / copy) for case in cases]
    text = table(cases, copy)
    print(text)
    for path, content in (
        (options.json, json.dumps({"copy_rate": copy, "cases": [asdict(case) for case in cases]}, indent=2)),
        (options.markdown, text),
    ):
        if path:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content + "\n")


if __name__ == "__main__":
    main()
