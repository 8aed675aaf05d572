"""Input and signals of the node workflow."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from anabasis.campaign.messages import Message, NodeIdentity


class NodeWorkflowInput(Message):
    """All that a node's workflow needs; `handle_*` and `booted_at` are carried over a continue-as-new."""

    node: NodeIdentity
    provider: str
    provider_options: dict[str, Any] = Field(default_factory=dict[str, Any])
    store_url: str
    heartbeat_seconds: float
    stall_seconds: float
    boot_timeout_seconds: float
    drain_timeout_seconds: float
    releasing: bool = False
    paid_from: float | None = None


class StopSignal(Message):
    """Signal `stop`: leave; polite = let the trainer end its step and hand back."""

    polite: bool
    reason: str = ""
