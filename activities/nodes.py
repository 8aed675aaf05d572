"""Control activities that get, look at and give back machines: thin, idempotent, and quick but for a polite release.

Failures have the types of `anabasis.errors`: `CapacityError` and `ProviderError` (retryable), `Throttled` (with the
delay that was asked for), `QuotaError`, `InvalidSpec` and `Fenced` (not retryable).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from temporalio import activity

from activities.failures import as_application_error
from activities.providers.base import TemporalAddress, get_provider
from anabasis.campaign.messages import NodeCommand, NodeDescription, NodeHandle, NodeRequest
from anabasis.errors import AnabasisError

BEAT_SECONDS = 1.0
"""Between heartbeats while a machine is given its grace (they are throttled by the SDK)."""

RELEASE_MARGIN_SECONDS = 30.0
"""`release_node` takes at most the command's grace and this: for force, and for reading that nothing is left."""


@activity.defn
async def request_node(request: NodeRequest) -> NodeHandle:
    """Have one machine for this identity, however often this is called."""
    client = activity.client()
    temporal = TemporalAddress(target=client.service_client.config.target_host, namespace=client.namespace)
    with _failures():
        provider = get_provider(request.provider, request.provider_options)
        return await provider.request(request, temporal=temporal)


@activity.defn
async def describe_node(command: NodeCommand) -> NodeDescription:
    """Read what there is of the machine; a provider that does not answer makes it `unknown`, not a failure."""
    with _failures():
        provider = get_provider(command.provider, command.provider_options)
        try:
            return await provider.describe(command.node)
        except AnabasisError as error:
            return NodeDescription(state="unknown", detail=f"{error.kind}: {error}"[:500])


@activity.defn
async def release_node(command: NodeCommand) -> NodeDescription:
    """End the machine; returns what a read says after that. Anything but `absent` means: call again."""
    with _failures():
        provider = get_provider(command.provider, command.provider_options)
        beating = asyncio.create_task(_beat())
        try:
            async with asyncio.timeout(command.grace_seconds + RELEASE_MARGIN_SECONDS):
                return await provider.release(command.node, grace_seconds=command.grace_seconds)
        except TimeoutError:
            return NodeDescription(state="stopping", detail="it takes long to end")
        finally:
            beating.cancel()
            with suppress(asyncio.CancelledError):
                await beating


async def _beat() -> None:
    while True:
        activity.heartbeat()
        await asyncio.sleep(BEAT_SECONDS)


@contextmanager
def _failures() -> Iterator[None]:
    try:
        yield
    except AnabasisError as error:
        raise as_application_error(error) from error


NODE_ACTIVITIES = [request_node, describe_node, release_node]
"""For the control worker."""
