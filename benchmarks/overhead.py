"""What a campaign costs a node: its speed against the same recipe in a bare loop.

    python -m benchmarks.overhead                                   # rounds of 20, 50 and 100 inner steps
    python -m benchmarks.overhead --inner-steps 100 --seconds 120 --json benchmarks/results/overhead.json

The bare loop is what anyone would write: batches, loss, backward, clip, AdamW. The campaign is the trainer's own
node loop in this process, with a real store on disk and a real aggregator in a process of its own, so everything
counts: polling, following versions, pseudo-gradients, compression, hashing, uploads, and the wait for the merge.

Machines have moods, so the two are interleaved: before each round, the bare loop makes as many steps as the round
has, and each round is compared with the bare steps just before it. The ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from torch import nn

from anabasis import logs
from anabasis.campaign.records import Roster, RosterMember, VersionManifest, keys
from anabasis.campaign.spec import CampaignSpec, parse_spec
from anabasis.storage import open_store
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import read_roster, read_version, write_roster
from anabasis.training.aggregator import Aggregator
from anabasis.training.dataset import Dataset, read_dataset_manifest
from anabasis.training.initial import build_model
from anabasis.training.inner import prepare_torch
from anabasis.training.node_loop import NodeLoop
from anabasis.training.patience import Patience
from anabasis.training.prepare import prepare_campaign
from anabasis.training.progress import Phase, Progress
from anabasis.training.recipe import load_recipe
from anabasis.training.sampling import SampleFeed

TARGET = 0.97
WARMUP_ROUNDS = 2
FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Row:
    """One comparison; shares are of the campaign's time."""

    inner_steps: int
    rounds: int
    round_seconds: float
    bare_tokens_per_second: float
    campaign_tokens_per_second: float
    ratio: float
    train_share: float
    sync_share: float
    wait_share: float


def main() -> int:
    """Print the table; exit code 1 when the longest rounds miss the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner-steps", type=int, nargs="+", default=[20, 50, 100])
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row, about")
    parser.add_argument("--recipe-options", type=json.loads, default={}, help="of the gpt, as JSON")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    logs.configure(level="WARNING")
    rows: list[Row] = []
    for inner_steps in options.inner_steps:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(compare(Path(folder), spec_of(inner_steps, options=options), seconds=options.seconds))
        print(table(rows[-1:], heading=len(rows) == 1), flush=True)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if rows[-1].ratio >= TARGET else 1


def spec_of(inner_steps: int, *, options: argparse.Namespace) -> CampaignSpec:
    return parse_spec(
        {
            "name": "overhead",
            "recipe": "gpt",
            "recipe_options": options.recipe_options,
            "fleet": {"slots": 1},
            "data": {"max_bytes": 4_000_000},
            "training": {
                "inner_steps": inner_steps,
                "batch_size": options.batch_size,
                "dense_warmup_rounds": 0,
                "threads_per_process": 1,
            },
            "checkpoint": {"evaluate_every_rounds": 0},
            "target": {"rounds": 1_000_000},
        }
    )


class BareLoop:
    """A model that is trained without any campaign."""

    def __init__(self, spec: CampaignSpec, dataset: Dataset) -> None:
        self.spec = spec
        self.dataset = dataset
        self.recipe = load_recipe(spec.recipe, spec.recipe_options)
        self.model = build_model(self.recipe, dataset=dataset.manifest, seed=0)
        settings = spec.training
        groups = [
            {"params": [p for p in self.model.parameters() if p.dim() >= 2], "weight_decay": settings.weight_decay},
            {"params": [p for p in self.model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=settings.inner_lr, betas=settings.betas, fused=True)
        lanes = dict.fromkeys(range(spec.data.partitions), 0)
        self.feed = SampleFeed(seed=1, offsets=lanes, partitions=spec.data.partitions, samples=dataset.samples)
        self.steps = 0
        self.losses = 0.0

    def run(self, steps: int) -> float:
        """Seconds that so many steps took."""
        started = time.perf_counter()
        clip = self.spec.training.gradient_clip or float("inf")
        for _ in range(steps):
            batch = self.dataset.batch(self.feed.batch(self.steps, size=self.spec.training.batch_size))
            loss = self.recipe.loss(self.model, batch)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), clip)
            self.optimizer.step()
            self.losses += loss.item()  # the bare loop, too, wants to know its loss
            self.steps += 1
        return time.perf_counter() - started


class Interleaved(Progress):
    """Runs the bare loop before each round; `bare_seconds` by base version."""

    def __init__(self, path: Path, bare: BareLoop, *, until: int) -> None:
        super().__init__(path)
        self.bare = bare
        self.until = until
        self.bare_seconds: dict[int, float] = {}

    def tick(self, phase: Phase | None = None) -> None:
        super().tick(phase)
        if self.phase == "training" and self.version < self.until and self.version not in self.bare_seconds:
            self.bare_seconds[self.version] = self.bare.run(self.bare.spec.training.inner_steps)


def compare(folder: Path, spec: CampaignSpec, *, seconds: float) -> Row:
    """Rounds after the warm-up, by what the manifests have committed."""
    store = open_store((folder / "store").as_uri()).child(keys.campaign_root(spec.name))
    prepare_campaign(store, spec, tick=lambda _: None)
    prepare_torch(spec.training)
    manifest = read_dataset_manifest(store)
    assert manifest is not None
    bare = BareLoop(spec, Dataset(store, manifest, folder / "cache"))
    bare.run(10)
    rounds = max(FEWEST_ROUNDS, round(seconds / (2 * bare.run(spec.training.inner_steps))))
    until = WARMUP_ROUNDS + rounds
    member = RosterMember(slot=0, attempt=1, nonce="benchmark")
    write_roster(
        store,
        Roster(campaign=spec.name, generation=1, phase="training", slots=[0], members=[member], target_rounds=until),
    )
    context = multiprocessing.get_context("spawn")
    aggregator = context.Process(target=aggregate, args=(store.url, until), daemon=True)
    aggregator.start()
    progress = Interleaved(folder / "progress.json", bare, until=until)
    patience = Patience(progress, stop=lambda: False)
    NodeLoop(store, spec=spec, dataset=manifest, member=member, patience=patience, cache_dir=folder / "cache").run()
    aggregator.join()
    versions = [read_version(store, version) for version in range(WARMUP_ROUNDS, until + 1)]
    return row_of(spec, versions, bare_seconds=progress.bare_seconds)


def row_of(spec: CampaignSpec, versions: list[VersionManifest], *, bare_seconds: dict[int, float]) -> Row:
    """Compare each round with the bare steps that ran within it, which do not count as the campaign's time."""
    ratios: list[float] = []
    totals = {"campaign": 0.0, "bare": 0.0, "train": 0.0, "sync": 0.0, "wait": 0.0}
    for base, manifest in itertools.pairwise(versions):
        header = manifest.contributions[0].header
        bare = bare_seconds[base.version]
        campaign = manifest.committed_at - base.committed_at - bare
        # A round that a busy machine slows down is cut short.
        ratios.append(bare / spec.training.inner_steps / (campaign / header.steps))
        totals["campaign"] += campaign
        totals["bare"] += bare * header.steps / spec.training.inner_steps
        totals["train"] += header.train_seconds - bare
        totals["sync"] += header.sync_seconds
        totals["wait"] += header.wait_seconds
    tokens = versions[-1].tokens_total - versions[0].tokens_total
    accounted = totals["train"] + totals["sync"] + totals["wait"]
    return Row(
        inner_steps=spec.training.inner_steps,
        rounds=len(ratios),
        round_seconds=totals["campaign"] / len(ratios),
        bare_tokens_per_second=tokens / totals["bare"],
        campaign_tokens_per_second=tokens / totals["campaign"],
        ratio=median(ratios),
        train_share=totals["train"] / accounted,
        sync_share=totals["sync"] / accounted,
        wait_share=totals["wait"] / accounted,
    )


def aggregate(url: str, until: int) -> None:
    """In a process of its own: merge until the end, then say so in the roster."""
    torch.set_num_threads(1)
    store: ObjectStore = open_store(url)
    Aggregator(store).advance(until_version=until)
    roster = read_roster(store)
    assert roster is not None
    write_roster(store, roster.model_copy(update={"generation": roster.generation + 1, "phase": "finished"}))


def table(rows: list[Row], *, heading: bool = True) -> str:
    lines = [
        "inner steps  rounds  round s  bare tok/s  campaign tok/s  train   sync    wait    ratio",
        "-----------  ------  -------  ----------  --------------  ------  ------  ------  ------",
    ]
    return "\n".join(
        (lines if heading else [])
        + [
            f"{row.inner_steps:11d}  {row.rounds:6d}  {row.round_seconds:7.2f}  {row.bare_tokens_per_second:10,.0f}  "
            f"{row.campaign_tokens_per_second:14,.0f}  {row.train_share:6.1%}  {row.sync_share:6.1%}  "
            f"{row.wait_share:6.1%}  {row.ratio:6.1%}"
            for row in rows
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
