"""From a version to a model that other programs can load: weights, configuration, tokenizer, card."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from anabasis.campaign.messages import PublishResult
from anabasis.campaign.records import BlobRef, DatasetManifest, ModelVersion, keys
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import ObjectNotFound
from anabasis.storage import registry
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob, hash_bytes
from anabasis.storage.versions import read_spec, read_version
from anabasis.training.card import model_card, model_config
from anabasis.training.crashpoints import crash_point
from anabasis.training.dataset import Dataset, read_dataset_manifest
from anabasis.training.initial import build_model
from anabasis.training.parameters import load_flat, named_views
from anabasis.training.recipe import Recipe, load_recipe
from anabasis.training.replica import Replica
from anabasis.training.tensorfile import pack
from anabasis.training.user_code import user_code

EVALUATION_BATCH = 16
"""Samples per batch of the final validation: memory for activations, not speed, is what limits an aggregator."""

Tick = Callable[[str], None]


def publish_model(root: ObjectStore, *, campaign: str, version: int, tick: Tick) -> PublishResult:
    """Publish a version in the registry `models/<campaign>/` of the store. Idempotent by (campaign, version).

    Args:
        root: the whole store.
        tick: called often; may raise to stop.

    Raises:
        UserCodeError: the recipe raised while it evaluated the model.
    """
    found = [m for m in registry.list_models(root) if (m.campaign, m.campaign_version) == (campaign, version)]
    if found:
        done = found[0]
    else:
        model = _make(root, campaign=campaign, version=version, tick=tick)
        crash_point("published_files")
        done = registry.publish(root, model)
        crash_point("published")
    return PublishResult(
        model=done.model, number=done.number, version=done.campaign_version, validation_loss=done.validation_loss
    )


def _make(root: ObjectStore, *, campaign: str, version: int, tick: Tick) -> ModelVersion:
    store = root.child(keys.campaign_root(campaign))
    spec, dataset = read_spec(store), read_dataset_manifest(store)
    if dataset is None:
        raise ObjectNotFound(f"{store.url}: the campaign has no data set; prepare it first")
    recipe = load_recipe(spec.recipe, spec.recipe_options)
    replica = Replica.load(store, version=version, on_progress=tick)
    validation_loss = evaluate(store, spec, dataset, recipe=recipe, replica=replica, tick=tick)
    contributors = contributed_tokens(store, version=version, tick=tick)
    card = model_card(
        spec,
        dataset,
        replica.manifest,
        parameters=replica.flat.numel(),
        validation_loss=validation_loss,
        contributors=contributors,
    )
    config = model_config(spec, dataset, options=recipe.config())
    files: dict[str, bytes] = {
        "model.safetensors": pack(named_views(replica.flat, replica.layout), metadata={"format": "pt"}),
        "config.json": json.dumps(config, indent=2, sort_keys=True, default=str).encode(),
        "README.md": card.encode(),
    }
    if dataset.tokenizer_blob is not None:
        files["tokenizer.json"] = get_blob(store, dataset.tokenizer_blob)
    return ModelVersion(
        model=campaign,
        number=0,
        campaign=campaign,
        campaign_version=version,
        files={name: _put(root, campaign, name=name, content=content, tick=tick) for name, content in files.items()},
        loss=replica.manifest.loss,
        validation_loss=validation_loss,
        tokens_total=replica.manifest.tokens_total,
        contributors=contributors,
        published_at=replica.manifest.committed_at,
    )


def _put(root: ObjectStore, model: str, *, name: str, content: bytes, tick: Tick) -> BlobRef:
    """Under the content's hash: another version's files, or an earlier try's, are never touched."""
    tick(f"writing {name}")
    digest = hash_bytes(content)
    key = f"models/{model}/files/{digest}/{name}"
    root.put(key, content)
    return BlobRef(key=key, hash=digest, size_bytes=len(content))


def evaluate(
    store: ObjectStore,
    spec: CampaignSpec,
    dataset: DatasetManifest,
    *,
    recipe: Recipe,
    replica: Replica,
    tick: Tick,
) -> float | None:
    """Mean loss on the validation samples by the recipe's own measure; None when it cannot be had or is not finite."""
    if dataset.validation_samples == 0:
        return None
    model = build_model(recipe, dataset=dataset, seed=spec.training.seed)
    load_flat(model, replica.flat)
    model.eval()
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)  # nobody trains any more
    try:
        return _evaluated(store, dataset, recipe=recipe, model=model, tick=tick)
    finally:
        torch.set_num_threads(threads)


def _evaluated(
    store: ObjectStore, dataset: DatasetManifest, *, recipe: Recipe, model: nn.Module, tick: Tick
) -> float | None:
    with tempfile.TemporaryDirectory(prefix="anabasis-validation-") as folder, torch.no_grad(), user_code("evaluate"):
        samples = Dataset(store, dataset, Path(folder), on_progress=lambda: tick("reading validation samples"))
        batches = recipe.validation_batches(samples, batch_size=EVALUATION_BATCH)
        loss = float(recipe.evaluate(model, _ticking(batches, tick=tick)))
    return loss if math.isfinite(loss) else None


def _ticking(batches: Iterable[Any], *, tick: Tick) -> Iterator[Any]:
    for batch in batches:
        tick("evaluating the model")
        yield batch


def contributed_tokens(store: ObjectStore, *, version: int, tick: Tick) -> dict[str, int]:
    """Tokens by node (`<slot>-<attempt>`) over all merged rounds up to a version."""
    tokens: dict[tuple[int, int], int] = {}
    for number in range(1, version + 1):
        tick("counting contributions")
        for item in read_version(store, number).contributions:
            node = (item.header.slot, item.header.attempt)
            tokens[node] = tokens.get(node, 0) + item.header.tokens
    return {f"{slot}-{attempt}": tokens[slot, attempt] for slot, attempt in sorted(tokens)}
