"""What is written beside a published model: its configuration, and a card that says where it comes from."""

from __future__ import annotations

import json
from typing import Any

from anabasis.campaign.records import DatasetManifest, VersionManifest
from anabasis.campaign.spec import CampaignSpec

MAX_LISTED_NODES = 50
"""Contributors named in the card; the registry has them all."""


def model_config(spec: CampaignSpec, dataset: DatasetManifest, *, options: dict[str, Any]) -> dict[str, Any]:
    """What is needed to build the model again: recipe, options in force, vocabulary, sequence length."""
    return {
        "recipe": spec.recipe,
        "recipe_options": spec.recipe_options,
        "options": options,
        "vocabulary_size": dataset.vocabulary_size,
        "sequence_length": dataset.sequence_length,
        "tokenizer": dataset.tokenizer,
    }


def model_card(
    spec: CampaignSpec,
    dataset: DatasetManifest,
    manifest: VersionManifest,
    *,
    parameters: int,
    validation_loss: float | None,
    contributors: dict[str, int],
) -> str:
    """Markdown for people; a function of committed facts alone, so that publishing again writes the same bytes."""
    facts = [
        ("campaign", f"`{manifest.campaign}`"),
        ("version", f"{manifest.version} ({manifest.merged_rounds} merged rounds)"),
        ("parameters", f"{parameters:,} (float32)"),
        ("recipe", f"`{spec.recipe}` with `{json.dumps(spec.recipe_options, sort_keys=True)}`"),
        ("training loss", _loss(manifest.loss)),
        ("validation loss", _loss(validation_loss)),
        ("training tokens", f"{manifest.tokens_total:,}"),
        ("data", f"`{dataset.source}`, {dataset.source_bytes:,} bytes, BLAKE3 `{dataset.source_hash}`"),
        ("tokenizer", f"{dataset.tokenizer}, {dataset.vocabulary_size:,} entries"),
        ("samples", f"{dataset.samples:,} of {dataset.sequence_length} tokens"),
        ("chain", f"`{manifest.chain}`"),
        ("fingerprint", f"`{manifest.fingerprint}` (xxh3-128 of the flat parameters)"),
    ]
    lines = [f"# {manifest.campaign}", "", "| | |", "| --- | --- |"]
    lines += [f"| {name} | {value} |" for name, value in facts]
    lines += ["", "## Contributors", "", _contributors(contributors), "", "## Data offsets", "", _offsets(manifest)]
    lines += ["", "## Loading", "", *_loading()]
    return "\n".join(lines) + "\n"


def _contributors(contributors: dict[str, int]) -> str:
    total = sum(contributors.values()) or 1
    ranked = sorted(contributors.items(), key=lambda item: (-item[1], item[0]))
    rows = [f"| {node} | {tokens:,} | {tokens / total:.1%} |" for node, tokens in ranked[:MAX_LISTED_NODES]]
    rest = len(ranked) - len(rows)
    more = f"\n\n…and {rest} more nodes." if rest else ""
    return "\n".join(["| node | tokens | share |", "| --- | ---: | ---: |", *rows]) + more


def _offsets(manifest: VersionManifest) -> str:
    trained = sum(manifest.offsets.values())
    return (
        f"{trained:,} samples are committed in {len(manifest.offsets)} partitions, "
        f"from {min(manifest.offsets.values(), default=0):,} to {max(manifest.offsets.values(), default=0):,} in each."
    )


def _loading() -> list[str]:
    return [
        "```python",
        "import json",
        "from safetensors.torch import load_file",
        "from anabasis.training.recipe import load_recipe",
        "",
        'config = json.load(open("config.json"))',
        'recipe = load_recipe(config["recipe"], config["recipe_options"])',
        'model = recipe.build_model(config["vocabulary_size"], config["sequence_length"])',
        'model.load_state_dict(load_file("model.safetensors"), strict=False)  # tied tensors are stored once',
        "```",
    ]


def _loss(loss: float | None) -> str:
    return "not measured" if loss is None else f"{loss:.4f}"
