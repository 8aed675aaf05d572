"""Version 0: the same model wherever it is built."""

from __future__ import annotations

import torch
from torch import nn

from anabasis.campaign.records import DatasetManifest
from anabasis.campaign.spec import CampaignSpec
from anabasis.errors import UserCodeError
from anabasis.training.recipe import Recipe, load_recipe
from anabasis.training.user_code import user_code


def initial_model(spec: CampaignSpec, dataset: DatasetManifest) -> nn.Module:
    """The recipe's model with initial parameters by the campaign's seed; torch's own generator is left as it was.

    Raises:
        InvalidSpec: the recipe cannot be loaded with its options.
        UserCodeError: it raised while it built the model, or built none.
    """
    return build_model(load_recipe(spec.recipe, spec.recipe_options), dataset=dataset, seed=spec.training.seed)


def build_model(recipe: Recipe, *, dataset: DatasetManifest, seed: int) -> nn.Module:
    """A recipe's model for a data set, with initial parameters by seed."""
    with torch.random.fork_rng(devices=[]), user_code("build_model"):
        torch.manual_seed(seed)
        model: object = recipe.build_model(dataset.vocabulary_size, dataset.sequence_length)
        if not isinstance(model, nn.Module):
            raise UserCodeError(f"build_model must return a torch.nn.Module, not {type(model).__name__}")
        return model
