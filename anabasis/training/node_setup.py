"""What every process of a node does before its first round: read the campaign, build model and optimizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from anabasis.campaign.records import DatasetManifest, TensorLayout
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import InvalidSpec, ObjectNotFound, UserCodeError
from anabasis.storage.base import ObjectStore
from anabasis.storage.versions import read_spec, try_read_version
from anabasis.training.dataset import Dataset, read_dataset_manifest
from anabasis.training.initial import build_model
from anabasis.training.inner import InnerTrainer, choose_device
from anabasis.training.local_round import LocalTrainer
from anabasis.training.parameters import layout_of
from anabasis.training.recipe import load_recipe
from anabasis.training.team import Solo, Team


def wait_for_campaign(store: ObjectStore, *, pause: Callable[[], None]) -> tuple[CampaignSpec, DatasetManifest]:
    """Spec and data set of a prepared campaign; a node may be up before preparation is through.

    Args:
        pause: called between looks; it sleeps, ticks, and may raise to stop.
    """
    while True:
        try:
            spec, dataset = read_spec(store), read_dataset_manifest(store)
        except ObjectNotFound:
            spec, dataset = None, None
        if spec is not None and dataset is not None and try_read_version(store, 0) is not None:
            return spec, dataset
        pause()


def build_trainer(
    store: ObjectStore,
    *,
    spec: CampaignSpec,
    dataset: DatasetManifest,
    cache_dir: Path,
    team: Team | None = None,
    on_progress: Callable[[], None] | None = None,
) -> LocalTrainer:
    """The recipe's model with its optimizer and data, for one process.

    Raises:
        InvalidSpec: the recipe cannot be loaded here, no such device, or fewer samples in a batch than processes.
        UserCodeError: the recipe raised.
    """
    team = team or Solo()
    settings = spec.training
    if settings.batch_size < team.size:
        raise InvalidSpec(
            [("training.batch_size", f"{settings.batch_size} is less than the {team.size} processes of a node")]
        )
    recipe = load_recipe(spec.recipe, spec.recipe_options)
    model = build_model(recipe, dataset=dataset, seed=settings.seed)
    device = choose_device(settings.device, rank=team.rank)
    inner = InnerTrainer(recipe, model, settings=settings, device=device, reduce=team.reduce if team.size > 1 else None)
    data = Dataset(store, dataset, cache_dir, on_progress=on_progress)
    return LocalTrainer(inner, dataset=data, settings=settings, partitions=spec.data.partitions, team=team)


def check_layout(trainer: LocalTrainer, layout: list[TensorLayout]) -> None:
    """Raise `UserCodeError` unless the recipe builds here what the campaign has parameters of."""
    here = layout_of(trainer.inner.model)
    if here == layout:
        return
    different = next((mine.name for mine, its in zip(here, layout, strict=False) if mine != its), "their number")
    raise UserCodeError(
        f"the recipe on this node builds another model than the campaign's ({different} differs): "
        "install the same version of it everywhere"
    )
