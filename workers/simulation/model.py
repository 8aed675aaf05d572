"""The model: how fast a simulated machine is, how long it lives and how it ends, and how the loss falls.

Everything follows from the seed and the node's slot and attempt, so that a rehearsal can be repeated.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Literal

from activities.providers.simulated import SimulatedOptions

End = Literal["lost", "frozen", "preempted"]

BOOT_SPREAD = 0.5
"""A machine boots in 50 to 150 % of the mean."""

LOSS_FLOOR_SHARE = 0.4
"""Of the initial loss (that of guessing) there remains this much, as with a small model on text."""

LOSS_ROUNDS = 30.0
"""Rounds in which the rest falls to 1/e."""

LOSS_NOISE = 0.01
"""Relative standard deviation between the losses that nodes report."""


@dataclass(frozen=True, slots=True)
class Fate:
    """One machine's life.

    Attributes:
        lifetime_seconds: from the end of its boot to its failure; None = it does not fail.
        end: how it fails.
    """

    boot_seconds: float
    steps_per_second: float
    lifetime_seconds: float | None
    end: End


def fate_of(options: SimulatedOptions, *, slot: int, attempt: int) -> Fate:
    """The life of the machine that a slot gets at an attempt."""
    draw = random.Random(f"fate {options.seed} {slot} {attempt}")
    boot = options.boot_seconds * draw.uniform(1 - BOOT_SPREAD, 1 + BOOT_SPREAD)
    speed = options.steps_per_second * math.exp(draw.gauss(0.0, options.spread))
    mean = options.mean_seconds_to_failure
    lifetime = draw.expovariate(1.0) * (mean or 1.0)
    kind = draw.random()
    end: End = "lost"
    if kind < options.freeze_share:
        end = "frozen"
    elif kind < options.freeze_share + options.preemption_share:
        end = "preempted"
    return Fate(boot, speed, lifetime if mean is not None else None, end)


def loss_at(rounds: int, *, vocabulary_size: int, noise: random.Random | None = None) -> float:
    """Training loss (nats per token) after so many merges."""
    start = math.log(vocabulary_size)
    floor = LOSS_FLOOR_SHARE * start
    loss = floor + (start - floor) * math.exp(-rounds / LOSS_ROUNDS)
    return loss if noise is None else loss * (1 + noise.gauss(0.0, LOSS_NOISE))
