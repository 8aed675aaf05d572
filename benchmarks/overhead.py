"""What a campaign costs a node: its tokens per second, against the same recipe in a bare loop.

    python -m benchmarks.overhead                                   # rounds of 20, 100 and 400 inner steps
    python -m benchmarks.overhead --inner-steps 100 --seconds 60 --json benchmarks/results/overhead.json

The bare loop is what anyone would write: batches, loss, backward, clip, AdamW. The campaign is the trainer's own
node loop in this process, with a real store on disk and a real aggregator in a process of its own, so everything
counts: polling, following versions, pseudo-gradients, compression, hashing, uploads, and the wait for the merge.
Bare and campaign runs alternate, and the bare rate is the mean of the runs before and after.

Two ratios: `wall` compares the rates as they are, which says nothing on a machine that has other things to do.
`ratio` compares processor time per step (polling, transfers and compression included) and multiplies by the share of
the time in which the node did not wait: what a node of one's own would see.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import nn

from anabasis import logs
from anabasis.campaign.records import Roster, RosterMember, keys
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
from anabasis.training.progress import Progress
from anabasis.training.recipe import load_recipe
from anabasis.training.sampling import SampleFeed

TARGET = 0.97
WARMUP_ROUNDS = 2
WARMUP_STEPS = 10


@dataclass(frozen=True)
class Row:
    """One comparison; shares are of the campaign's time."""

    inner_steps: int
    rounds: int
    round_seconds: float
    bare_tokens_per_second: float
    campaign_tokens_per_second: float
    wall_ratio: float
    ratio: float
    train_share: float
    sync_share: float
    wait_share: float


def main() -> int:
    """Print the table; exit code 1 when the longest rounds miss the target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inner-steps", type=int, nargs="+", default=[20, 100, 400])
    parser.add_argument("--seconds", type=float, default=30.0, help="of each run, about")
    parser.add_argument("--recipe-options", type=json.loads, default={}, help="of the gpt, as JSON")
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the rows there")
    options = parser.parse_args()
    logs.configure(level="WARNING")
    with tempfile.TemporaryDirectory() as folder:
        rows = compare(Path(folder), options)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    return 0 if rows[-1].ratio >= TARGET else 1


def compare(folder: Path, options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    for number, inner_steps in enumerate(options.inner_steps):
        spec = spec_of(f"overhead-{number}", inner_steps=inner_steps, options=options)
        store = open_store((folder / "store").as_uri()).child(keys.campaign_root(spec.name))
        prepare_campaign(store, spec, tick=lambda _: None)
        prepare_torch(spec.training)
        dataset = dataset_of(store, folder)
        before = bare_rate(spec, dataset, seconds=options.seconds / 2)
        rounds = max(3, round(options.seconds / (inner_steps * before.seconds_per_step)))
        found = campaign_rate(folder, spec, store, rounds=rounds)
        after = bare_rate(spec, dataset, seconds=options.seconds / 2)
        rows.append(row_of(spec, rounds=rounds, bare=(before, after), found=found))
        print(table(rows[-1:], heading=number == 0), flush=True)
    return rows


@dataclass(frozen=True)
class Rate:
    """Of one step. Shares (train, sync, wait) are of the time that the node accounts for."""

    seconds_per_step: float
    cpu_seconds_per_step: float
    shares: tuple[float, float, float] = (1.0, 0.0, 0.0)
    round_seconds: float = 0.0


def row_of(spec: CampaignSpec, *, rounds: int, bare: tuple[Rate, Rate], found: Rate) -> Row:
    seconds = sum(rate.seconds_per_step for rate in bare) / 2
    cpu_seconds = sum(rate.cpu_seconds_per_step for rate in bare) / 2
    train, sync, wait = found.shares
    return Row(
        inner_steps=spec.training.inner_steps,
        rounds=rounds,
        round_seconds=found.round_seconds,
        bare_tokens_per_second=tokens_per_step(spec) / seconds,
        campaign_tokens_per_second=tokens_per_step(spec) / found.seconds_per_step,
        wall_ratio=seconds / found.seconds_per_step,
        ratio=cpu_seconds / found.cpu_seconds_per_step * (1 - wait),
        train_share=train,
        sync_share=sync,
        wait_share=wait,
    )


def spec_of(name: str, *, inner_steps: int, options: argparse.Namespace) -> CampaignSpec:
    return parse_spec(
        {
            "name": name,
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


def bare_rate(spec: CampaignSpec, dataset: Dataset, *, seconds: float) -> Rate:
    """Of a plain loop."""
    settings = spec.training
    recipe = load_recipe(spec.recipe, spec.recipe_options)
    model = build_model(recipe, dataset=dataset.manifest, seed=0)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
        lr=settings.inner_lr,
        betas=settings.betas,
        fused=True,
    )
    lanes = dict.fromkeys(range(spec.data.partitions), 0)
    feed = SampleFeed(seed=1, offsets=lanes, partitions=spec.data.partitions, samples=dataset.samples)
    started, cpu_started, steps, losses = time.perf_counter(), time.process_time(), -WARMUP_STEPS, 0.0
    while steps < 1 or time.perf_counter() - started < seconds:
        if steps == 0:
            started, cpu_started = time.perf_counter(), time.process_time()
        loss = recipe.loss(model, dataset.batch(feed.batch(steps + WARMUP_STEPS, size=settings.batch_size)))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), settings.gradient_clip or float("inf"))
        optimizer.step()
        losses += loss.item()  # the bare loop, too, wants to know its loss
        steps += 1
    return Rate((time.perf_counter() - started) / steps, (time.process_time() - cpu_started) / steps)


class Watched(Progress):
    """Remembers the processor time after every step."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.cpu_seconds = [time.process_time()]

    def stepped(self, *, tokens: int) -> None:
        super().stepped(tokens=tokens)
        self.cpu_seconds.append(time.process_time())


def campaign_rate(folder: Path, spec: CampaignSpec, store: ObjectStore, *, rounds: int) -> Rate:
    """Of the rounds after the warm-up: time by what the manifests have committed, and by the node's accounting."""
    until = WARMUP_ROUNDS + rounds
    member = RosterMember(slot=0, attempt=1, nonce="benchmark")
    write_roster(
        store,
        Roster(campaign=spec.name, generation=1, phase="training", slots=[0], members=[member], target_rounds=until),
    )
    context = multiprocessing.get_context("spawn")
    aggregator = context.Process(target=aggregate, args=(store.url, until), daemon=True)
    aggregator.start()
    manifest = read_dataset_manifest(store)
    assert manifest is not None
    progress = Watched(folder / "progress.json")
    loop = NodeLoop(
        store,
        spec=spec,
        dataset=manifest,
        member=member,
        patience=Patience(progress, stop=lambda: False),
        cache_dir=folder / "cache",
    )
    loop.run()
    aggregator.join()
    first, last = read_version(store, WARMUP_ROUNDS), read_version(store, until)
    elapsed = last.committed_at - first.committed_at
    headers = [read_version(store, version).contributions[0].header for version in range(WARMUP_ROUNDS + 1, until + 1)]
    spent = [sum(getattr(header, f"{what}_seconds") for header in headers) for what in ("train", "sync", "wait")]
    train, sync, wait = (seconds / sum(spent) for seconds in spent)
    before = sum(read_version(store, version).contributions[0].header.steps for version in range(1, WARMUP_ROUNDS + 1))
    steps = sum(header.steps for header in headers)  # a round that a busy machine slows down is cut short
    cpu = progress.cpu_seconds[before + steps] - progress.cpu_seconds[before]
    return Rate(elapsed / steps, cpu / steps, (train, sync, wait), elapsed / rounds)


def aggregate(url: str, until: int) -> None:
    """In a process of its own: merge until the end, then say so in the roster."""
    torch.set_num_threads(1)
    store = open_store(url)
    Aggregator(store).advance(until_version=until)
    roster = read_roster(store)
    assert roster is not None
    write_roster(store, roster.model_copy(update={"generation": roster.generation + 1, "phase": "finished"}))


def dataset_of(store: ObjectStore, folder: Path) -> Dataset:
    manifest = read_dataset_manifest(store)
    assert manifest is not None
    return Dataset(store, manifest, folder / "cache")


def tokens_per_step(spec: CampaignSpec) -> int:
    return spec.training.batch_size * spec.data.sequence_length


def table(rows: list[Row], *, heading: bool = True) -> str:
    lines = [
        "inner steps  rounds  round s  bare tok/s  campaign tok/s  wall    train    sync    wait    ratio",
        "-----------  ------  -------  ----------  --------------  ------  ------  ------  ------  ------",
    ]
    return "\n".join(
        (lines if heading else [])
        + [
            f"{row.inner_steps:11d}  {row.rounds:6d}  {row.round_seconds:7.2f}  {row.bare_tokens_per_second:10,.0f}  "
            f"{row.campaign_tokens_per_second:14,.0f}  {row.wall_ratio:6.1%}  {row.train_share:6.1%}  "
            f"{row.sync_share:6.1%}  {row.wait_share:6.1%}  {row.ratio:6.1%}"
            for row in rows
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
