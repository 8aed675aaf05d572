"""Where nodes come from: the contract of every provider, and the list of them.

A provider is a thin, stateless view of a place that has the state (a cloud's API, a folder of this machine). Two
objects made with the same options are the same provider, in whatever process they live.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from anabasis.campaign.messages import NodeDescription, NodeHandle, NodeIdentity, NodeRequest, Problem
from anabasis.errors import InvalidSpec

OPTIONS_PATH = "fleet.provider_options"

Options = TypeVar("Options", bound="ProviderOptions")


@dataclass(frozen=True, slots=True)
class Offer:
    """What could fill a slot now.

    Attributes:
        price_per_hour: None when the provider does not say.
        available: machines of this kind that can be had; None when nobody knows before asking.
    """

    provider: str
    region: str
    machine_type: str
    price_per_hour: float | None
    spot: bool = False
    available: int | None = None


@dataclass(frozen=True, slots=True)
class TemporalAddress:
    """Where a node's agent finds its task queue. Keys and certificates are never in it: those come by environment."""

    target: str
    namespace: str


class Provider(Protocol):
    """A place to get machines from.

    Every method is safe to call again, at any time, from any process, and raises only `anabasis.errors`:
    `CapacityError` (none to be had now), `QuotaError` (never to be had: limit zero, credentials), `Throttled`,
    `Fenced` (this life was released already), or `ProviderError` for all else.
    """

    @property
    def name(self) -> str:
        """As in `fleet.provider`."""
        ...

    async def offers(self) -> list[Offer]:
        """What can be had now, cheapest first."""
        ...

    async def request(self, request: NodeRequest, *, temporal: TemporalAddress) -> NodeHandle:
        """Have one machine for this identity that runs a node agent; returns without waiting for it to boot.

        Idempotent by `request.node`: however often it is called, and wherever it crashed before, there is at most
        one machine. The machine is registered under its identity *before* it is created, so that `list` can
        find it even when nobody lived to hear that it exists. A machine that has come and gone is not made again.

        Raises:
            Fenced: `release` was called for this identity already (perhaps while this call was on its way).
        """
        ...

    async def describe(self, node: NodeIdentity) -> NodeDescription:
        """Read what there is of this machine.

        `absent` only when the provider *knows* that nothing of it exists (any more): nothing runs, nothing is
        paid. When it cannot say (no answer, no permission, another machine's disk) that is `unknown`.
        A frozen machine is `running`: it is paid for.
        """
        ...

    async def list(self, campaign: str) -> list[NodeIdentity]:
        """Every machine of a campaign that is not absent, whoever asked for it."""
        ...

    async def release(self, node: NodeIdentity, *, grace_seconds: float) -> NodeDescription:
        """End the machine, and return what a `describe` after that says.

        The agent is asked politely first and has `grace_seconds`; then by force, frozen or not. No later request
        for this identity has an effect. Absent is success; any other answer means: call it again.
        """
        ...


class ProviderOptions(BaseModel):
    """Base of every provider's options: unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def home_dir() -> Path:
    """The state directory (`ANABASIS_HOME`, default `./.anabasis`), where providers of this machine keep theirs."""
    return Path(os.environ.get("ANABASIS_HOME") or ".anabasis").expanduser().absolute()


def known_providers() -> list[str]:
    """Names for `fleet.provider`."""
    return ["local", "simulated"]


def get_provider(name: str, options: Mapping[str, Any] | None = None) -> Provider:
    """The provider of this name with these options.

    Raises:
        InvalidSpec: no such provider, or options that it does not understand; every problem by its path.
    """
    # Imported where they are needed: a cloud's SDK is large, and most processes need one provider or none.
    if name == "local":
        from activities.providers.local import LocalOptions, LocalProvider

        return LocalProvider(_validate(LocalOptions, options or {}), home=home_dir())
    if name == "simulated":
        from activities.providers.simulated import SimulatedOptions, SimulatedProvider

        return SimulatedProvider(_validate(SimulatedOptions, options or {}), home=home_dir())
    raise InvalidSpec([("fleet.provider", f"{name!r} is not a provider; known: {', '.join(known_providers())}")])


def check_provider(name: str, options: Mapping[str, Any] | None = None) -> list[Problem]:
    """What `get_provider` would complain of; empty when nothing."""
    try:
        get_provider(name, options)
    except InvalidSpec as error:
        return [Problem(path=path, text=text) for path, text in error.problems]
    return []


def _validate(model: type[Options], options: Mapping[str, Any]) -> Options:
    try:
        return model.model_validate(dict(options))
    except ValidationError as error:
        raise InvalidSpec([_problem(item, known=sorted(model.model_fields)) for item in error.errors()]) from None


def _problem(item: Any, *, known: list[str]) -> tuple[str, str]:
    path = ".".join([OPTIONS_PATH, *(str(part) for part in item["loc"])])
    if item["type"] == "extra_forbidden":
        return path, f"is not an option of this provider; known: {', '.join(known)}"
    value = repr(item.get("input"))
    text = item["msg"].removeprefix("Value error, ")
    return path, f"{text[:1].lower()}{text[1:]}, got {value if len(value) <= 80 else value[:77] + '...'}"
