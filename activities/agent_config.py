"""What a node agent is told when it is started: one JSON file, written by the provider, without secrets."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field

from anabasis.campaign.messages import NodeIdentity

ORPHAN_SECONDS = 900.0
"""An agent without a lease for so long stops its trainer and ends: the campaign is over, or has given it up.

Much longer than any restart of Temporal, so that no outage costs a step; short enough that a machine which nobody
releases does not train for nobody for more than a quarter of an hour."""

STARTUP_GRACE_SECONDS = 120.0
"""From a trainer's start to its first sign of life: importing torch from a cold, busy disk has taken half of this."""

TRAINER_RESTARTS, TRAINER_RESTART_WINDOW_SECONDS = 3, 600.0
"""A trainer that was killed (out of memory, an operator) is started again in place so often in this time: it costs a
second, a new machine costs minutes. One that dies more often has a reason to, and the campaign should know."""


class TrainerLimits(BaseModel):
    """What a trainer may use of its machine; the agent itself is never limited.

    Attributes:
        nice: added to the trainer's niceness.
        cpus: numbers of the CPUs it may run on; empty = all.
        memory_bytes: of private writable memory (RLIMIT_DATA). Not address space: torch maps far more than it uses.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    nice: int = 0
    cpus: list[int] = Field(default_factory=list)
    memory_bytes: int | None = None


class AgentConfig(BaseModel):
    """All of it.

    Attributes:
        folder: the node's own: pid, lock, logs, work.
        temporal_target, temporal_namespace: where the task queue is; TLS and keys come by environment or profile.
        shutdown_grace_seconds: for the trainer to end politely.
        trainer_command: `--config FILE` is appended.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    node: NodeIdentity
    folder: Path
    store_url: str
    temporal_target: str
    temporal_namespace: str
    heartbeat_seconds: float
    stall_seconds: float
    shutdown_grace_seconds: float = 20.0
    orphan_seconds: float = ORPHAN_SECONDS
    startup_grace_seconds: float = STARTUP_GRACE_SECONDS
    trainer_restarts: int = TRAINER_RESTARTS
    trainer_restart_window_seconds: float = TRAINER_RESTART_WINDOW_SECONDS
    trainer_command: list[str]
    limits: TrainerLimits = Field(default_factory=TrainerLimits)
