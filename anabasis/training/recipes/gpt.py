"""A decoder-only transformer: pre-norm blocks with causal self-attention, as in GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from anabasis.training.recipe import Recipe
from anabasis.training.recipes.options import one_of, share, whole

ROTARY_BASE = 10_000.0
"""Of Su et al. 2021 (arXiv:2104.09864)."""

INITIAL_STD = 0.02
"""Of all matrices, as in GPT-2; projections into the residual stream have it divided by √(2 · layers)."""


class Gpt(Recipe):
    """Next-token prediction with a GPT. The defaults (0.5 M parameters) train in minutes on a few CPU cores.

    Args:
        layers, width, heads: blocks, size of the residual stream, attention heads; width / heads must be even.
        mlp_ratio: hidden size of the feed-forward part, as a multiple of the width.
        dropout: of attention weights and of what enters the residual stream.
        positions: `rotary` (relative, no parameters) or `learned` (one vector for each place).
        tied: output and input embeddings are the same matrix.
    """

    def __init__(
        self,
        *,
        layers: int = 4,
        width: int = 96,
        heads: int = 4,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
        positions: str = "rotary",
        tied: bool = True,
    ) -> None:
        self.layers = whole("layers", layers, least=1, most=1_000)
        self.width = whole("width", width, least=2, most=65_536)
        self.heads = whole("heads", heads, least=1, most=1_024)
        self.mlp_ratio = whole("mlp_ratio", mlp_ratio, least=1, most=64)
        self.dropout = share("dropout", dropout)
        self.positions = one_of("positions", positions, choices=("rotary", "learned"))
        self.tied = bool(tied)
        if self.width % self.heads:
            raise ValueError(f"width: {width} is not divisible by heads = {heads}")
        if self.positions == "rotary" and self.width // self.heads % 2:
            raise ValueError(f"width: width / heads = {width // heads} must be even for rotary positions")

    def build_model(self, vocabulary_size: int, sequence_length: int) -> nn.Module:
        return GptModel(self, vocabulary_size=vocabulary_size, sequence_length=sequence_length)


class GptModel(nn.Module):
    """Tokens int64 [B, T ≤ L] to logits [B, T, V]."""

    def __init__(self, recipe: Gpt, *, vocabulary_size: int, sequence_length: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary_size, recipe.width)
        self.places = nn.Embedding(sequence_length, recipe.width) if recipe.positions == "learned" else None
        self.blocks = nn.ModuleList(Block(recipe, sequence_length=sequence_length) for _ in range(recipe.layers))
        self.norm = nn.LayerNorm(recipe.width)
        self.head = nn.Linear(recipe.width, vocabulary_size, bias=False)
        self.drop = nn.Dropout(recipe.dropout)
        self.apply(_initialise)
        for name, parameter in self.named_parameters():
            if name.endswith(("attention.out.weight", "mlp.2.weight")):
                nn.init.normal_(parameter, std=INITIAL_STD / math.sqrt(2 * recipe.layers))
        if recipe.tied:
            self.head.weight = self.tokens.weight

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.tokens(tokens)
        if self.places is not None:
            hidden = hidden + self.places.weight[: tokens.shape[1]]
        hidden = self.drop(hidden)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(self.norm(hidden))


class Block(nn.Module):
    """x + attention(norm(x)), then x + mlp(norm(x)); [B, T, width]."""

    def __init__(self, recipe: Gpt, *, sequence_length: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(recipe.width)
        self.attention = Attention(recipe, sequence_length=sequence_length)
        self.mlp_norm = nn.LayerNorm(recipe.width)
        hidden = recipe.mlp_ratio * recipe.width
        self.mlp = nn.Sequential(nn.Linear(recipe.width, hidden), nn.GELU(), nn.Linear(hidden, recipe.width))
        self.drop = nn.Dropout(recipe.dropout)

    def forward(self, hidden: Tensor) -> Tensor:
        hidden = hidden + self.drop(self.attention(self.attention_norm(hidden)))
        return hidden + self.drop(self.mlp(self.mlp_norm(hidden)))


class Attention(nn.Module):
    """Causal multi-head self-attention by torch's fused kernel; [B, T, width]."""

    cos: Tensor
    sin: Tensor

    def __init__(self, recipe: Gpt, *, sequence_length: int) -> None:
        super().__init__()
        self.heads = recipe.heads
        self.dropout = recipe.dropout
        self.rotary = recipe.positions == "rotary"
        self.qkv = nn.Linear(recipe.width, 3 * recipe.width)
        self.out = nn.Linear(recipe.width, recipe.width)
        if self.rotary:
            cos, sin = rotary_tables(recipe.width // recipe.heads, sequence_length)
            self.register_buffer("cos", cos, persistent=False)
            self.register_buffer("sin", sin, persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        batch, length, width = hidden.shape
        shape = (batch, length, 3, self.heads, width // self.heads)
        query, key, value = self.qkv(hidden).view(shape).permute(2, 0, 3, 1, 4).unbind(0)
        if self.rotary:
            query, key = self._rotate(query), self._rotate(key)
        mixed = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=self.dropout if self.training else 0.0
        )
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))

    def _rotate(self, x: Tensor) -> Tensor:
        """Turn each pair of channels of [B, heads, T, d] by its angle at its place."""
        cos, sin = self.cos[: x.shape[2]].to(x.dtype), self.sin[: x.shape[2]].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def rotary_tables(head_size: int, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines [length, head_size / 2] of the angles of rotary positions."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, head_size, 2, dtype=torch.float64) / head_size)
    angles = torch.outer(torch.arange(length, dtype=torch.float64), frequencies)
    return angles.cos().float(), angles.sin().float()


def _initialise(module: nn.Module) -> None:
    if isinstance(module, (nn.Linear, nn.Embedding)):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
