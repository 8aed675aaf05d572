"""The smallest model that learns something: which token follows which."""

from __future__ import annotations

from torch import nn

from anabasis.training.recipe import Recipe
from anabasis.training.recipes.options import whole


class Tiny(Recipe):
    """A bigram model of low rank: an embedding and a linear layer, 16,384 parameters for 1,024 tokens.

    A step takes about a millisecond, so that rehearsals and tests spend their time on the campaign.

    Args:
        width: rank of the table.
    """

    def __init__(self, *, width: int = 8) -> None:
        self.width = whole("width", width, least=1, most=4_096)

    def build_model(self, vocabulary_size: int, sequence_length: int) -> nn.Module:
        return nn.Sequential(
            nn.Embedding(vocabulary_size, self.width), nn.Linear(self.width, vocabulary_size, bias=False)
        )
