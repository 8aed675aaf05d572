"""What every provider promises, as tests: a provider's own test class inherits them and brings a `place`.

A place is where nodes of one provider live while a test runs. It can be looked at and harmed behind the provider's
back, which is how these tests know whether what the provider says is true.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import pytest

from activities.providers.base import Provider, TemporalAddress
from anabasis.campaign.messages import NodeDescription, NodeIdentity, NodeRequest
from anabasis.errors import CapacityError, Fenced
from tests.nodes.conftest import identity, request_for
from tests.support.wait import wait_until


class Place(Protocol):
    """Everything that the contract needs of a provider under test."""

    def provider(self) -> Provider:
        """A new object each time: providers keep nothing in memory."""
        ...

    def crowded(self, limit: int) -> Provider:
        """The same place, with room for so many nodes."""
        ...

    @property
    def temporal(self) -> TemporalAddress: ...

    def lives_of(self, node: NodeIdentity) -> int:
        """How many machines of this identity there really are."""
        ...

    async def lose(self, node: NodeIdentity) -> None:
        """As a power cut."""
        ...

    async def freeze(self, node: NodeIdentity) -> None: ...

    async def make_unreadable(self) -> None:
        """The place does not answer any more."""
        ...


class ProviderContract:
    """Tests: subclass it with a fixture `place`."""

    def ask(self, node: NodeIdentity, place: Place) -> NodeRequest:
        return request_for(node, provider=place.provider().name)

    async def start(self, place: Place, node: NodeIdentity) -> None:
        await place.provider().request(self.ask(node, place), temporal=place.temporal)
        await self.until(place, node, "running")

    async def until(self, place: Place, node: NodeIdentity, state: str) -> NodeDescription:
        async def reached() -> NodeDescription | None:
            found = await place.provider().describe(node)
            return found if found.state == state else None

        found = await wait_until(reached, seconds=30, what=f"{node.node_id} is {state}")
        assert found is not None
        return found

    async def test_what_was_never_asked_for_is_absent(self, place: Place) -> None:
        assert (await place.provider().describe(identity())).state == "absent"

    async def test_a_requested_node_boots_and_runs(self, place: Place) -> None:
        node = identity()
        handle = await place.provider().request(self.ask(node, place), temporal=place.temporal)
        assert handle.provider == place.provider().name
        assert handle.reference
        assert (await place.provider().describe(node)).state in ("starting", "running")
        await self.until(place, node, "running")
        assert place.lives_of(node) == 1

    async def test_requests_are_idempotent_also_at_the_same_time(self, place: Place) -> None:
        node = identity()
        asked = [place.provider().request(self.ask(node, place), temporal=place.temporal) for _ in range(5)]
        handles = await asyncio.gather(*asked)
        await self.until(place, node, "running")
        handles.append(await place.provider().request(self.ask(node, place), temporal=place.temporal))
        assert len({handle.reference for handle in handles}) == 1
        assert place.lives_of(node) == 1

    async def test_release_ends_it_and_may_be_repeated(self, place: Place) -> None:
        node = identity()
        await self.start(place, node)
        assert (await place.provider().release(node, grace_seconds=5.0)).state == "absent"
        assert place.lives_of(node) == 0
        assert (await place.provider().release(node, grace_seconds=5.0)).state == "absent"
        assert (await place.provider().describe(node)).state == "absent"

    async def test_a_release_before_the_request_wins(self, place: Place) -> None:
        node = identity()
        assert (await place.provider().release(node, grace_seconds=0.0)).state == "absent"
        with pytest.raises(Fenced):
            await place.provider().request(self.ask(node, place), temporal=place.temporal)
        assert place.lives_of(node) == 0

    async def test_release_during_boot_leaves_nothing(self, place: Place) -> None:
        node = identity()
        await place.provider().request(self.ask(node, place), temporal=place.temporal)
        assert (await place.provider().release(node, grace_seconds=1.0)).state == "absent"
        assert place.lives_of(node) == 0

    async def test_a_lost_node_is_absent_and_not_made_again(self, place: Place) -> None:
        node = identity()
        await self.start(place, node)
        await place.lose(node)
        await self.until(place, node, "absent")
        await place.provider().request(self.ask(node, place), temporal=place.temporal)
        assert (await place.provider().describe(node)).state == "absent"
        assert place.lives_of(node) == 0

    async def test_a_frozen_node_runs_until_it_is_released(self, place: Place) -> None:
        node = identity()
        await self.start(place, node)
        await place.freeze(node)
        assert (await place.provider().describe(node)).state == "running"
        assert (await place.provider().release(node, grace_seconds=30.0)).state == "absent"
        assert place.lives_of(node) == 0

    async def test_list_names_what_is_there(self, place: Place) -> None:
        first = identity()
        second = first.model_copy(update={"slot": 7})
        other = identity()
        for node in (first, second, other):
            await self.start(place, node)
        found = await place.provider().list(first.campaign)
        assert {node.slot for node in found} == {0, 7}
        assert all(node.nonce == first.nonce for node in found)
        await place.provider().release(first, grace_seconds=1.0)
        assert [node.slot for node in await place.provider().list(first.campaign)] == [7]
        assert await place.provider().list("nobody") == []

    async def test_two_lives_of_a_slot_are_two_nodes(self, place: Place) -> None:
        old = identity()
        new = old.model_copy(update={"attempt": 2, "nonce": "another"})
        await self.start(place, old)
        await self.start(place, new)
        await place.provider().release(old, grace_seconds=1.0)
        assert (await place.provider().describe(new)).state == "running"

    async def test_a_full_place_refuses_and_leaves_no_trace(self, place: Place) -> None:
        node = identity()
        await self.start(place, node)
        crowded = place.crowded(1)
        another = node.model_copy(update={"slot": 1})
        with pytest.raises(CapacityError):
            await crowded.request(self.ask(another, place), temporal=place.temporal)
        await crowded.request(self.ask(node, place), temporal=place.temporal)  # it is there already
        await crowded.release(node, grace_seconds=1.0)
        await crowded.request(self.ask(another, place), temporal=place.temporal)
        assert [entry.slot for entry in await crowded.list(node.campaign)] == [1]

    async def test_a_place_that_does_not_answer_is_unknown_not_absent(self, place: Place) -> None:
        node = identity()
        await self.start(place, node)
        await place.make_unreadable()
        assert (await place.provider().describe(node)).state == "unknown"

    async def test_offers_say_what_it_costs(self, place: Place) -> None:
        offers = await place.provider().offers()
        assert offers
        assert all(offer.provider == place.provider().name for offer in offers)
