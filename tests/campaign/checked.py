"""A world that looks at every step of the reducer: what it may decide, and that it decides by its state alone."""

from __future__ import annotations

import json

from anabasis.campaign import events as e
from anabasis.campaign import reducer
from anabasis.campaign.planner import wake_at
from anabasis.campaign.state import CampaignState
from anabasis.campaign.status import NodeState, Phase
from anabasis.campaign.view import status_of
from tests.campaign.world import World

_ENDS = {Phase.COMPLETED, Phase.FAILED, Phase.CANCELLED}
_WORK = {Phase.TRAINING, Phase.CHECKPOINTING, Phase.PAUSED, Phase.ROLLING_BACK, Phase.PUBLISHING, Phase.RELEASING}
AFTER: dict[Phase, set[Phase]] = {
    Phase.PROVISIONING: {Phase.TRAINING, Phase.PAUSED, Phase.RELEASING},
    Phase.PAUSED: _WORK | {Phase.PROVISIONING},
    Phase.TRAINING: _WORK,
    Phase.CHECKPOINTING: _WORK,
    Phase.ROLLING_BACK: _WORK,
    Phase.PUBLISHING: _WORK,
    Phase.RELEASING: _ENDS,
    Phase.COMPLETED: set(),
    Phase.FAILED: set(),
    Phase.CANCELLED: set(),
}
"""Which phase may follow which, besides itself. A campaign that once had its quorum never provisions again, one that
ends never turns back, and no end is reached but through the release of its machines."""

GROWING = [
    "version", "accounted_version", "merged_rounds", "tokens_total", "incident_sequence", "job_number",
    "journal_sequence", "journaled_through", "divergences", "user_code_failures",
]  # fmt: skip


class CheckedWorld(World):
    """Raises AssertionError at the step that breaks a rule."""

    def feed(self, event: e.Event) -> list[e.Decision]:
        before = _through_json(self.state)
        twin = _through_json(self.state)
        decisions = super().feed(event)
        assert reducer.step(twin, event) == decisions, "what survives continue-as-new decides otherwise"
        assert twin == self.state
        after, was = self.state.phase, before.phase
        assert after is was or after in AFTER[was], f"{was} → {after}"
        if was.terminal:
            assert decisions == []
            assert self.state == before
        due = wake_at(self.state, now=event.at)
        assert due is None or due > event.at, "a timer for what is past goes off for ever"
        for decision in decisions:
            self._look_at(decision, event, before=before)
        self._look_at_the_whole(before)
        return decisions

    def _look_at(self, decision: e.Decision, event: e.Event, *, before: CampaignState) -> None:
        state, at = self.state, event.at
        match decision:
            case e.StartNode():
                node = decision.node
                assert node.slot < state.desired_slots
                assert state.outcome is None
                assert not state.target_reached
                assert not (state.paused and state.release_on_pause)
                assert not before.continue_requested or not state.continue_requested
                assert [life.nonce for life in state.nodes.values() if life.slot == node.slot and life.present] == [
                    node.nonce
                ]
                assert state.slots[node.slot].not_before <= at
                sitting = before.sitting_in(node.slot)
                told_so = isinstance(event, e.NodeReported)  # a read that says absent, or a failure
                if sitting is not None and sitting.state is NodeState.UNKNOWN:
                    assert told_so or sitting.leave, "a machine was replaced for being unknown"
            case e.StopNode():
                life = state.nodes[decision.node.node_id]
                assert life.leave, "nobody wanted it to leave"
            case e.StartJob():
                assert before.job is None or state.job_number == before.job_number + 1
                assert decision.kind != "leg" or decision.version > state.version
                assert decision.kind not in ("leg", "publish", "rollback") or state.outcome is None
                assert decision.kind != "leg" or not (state.paused or state.target_reached)
                assert decision.kind != "publish" or state.target_reached
                assert decision.kind in ("leg", "rollback") or decision.version == state.version
            case e.ContinueAsNew():
                assert (state.job, state.roster_in_flight, state.journal_in_flight) == (None, False, False)
                assert state.outcome is None
            case e.Finish():
                assert state.phase.value == decision.outcome
                assert not state.nodes or at >= (state.released_by or 0.0)
                assert state.job is None
                assert not state.roster_in_flight
                assert not state.journal_in_flight
            case _:
                pass

    def _look_at_the_whole(self, before: CampaignState) -> None:
        state = self.state
        for name in GROWING:
            assert getattr(state, name) >= getattr(before, name), f"{name} shrank"
        assert (state.checkpoint_version or 0) >= (before.checkpoint_version or 0)
        assert before.outcome is None or state.outcome == before.outcome
        for number, slot in before.slots.items():
            assert state.slots[number].attempt >= slot.attempt
        shown = status_of(state, now=self.now)
        assert shown.ready_nodes == sum(node.state is NodeState.READY for node in shown.nodes)


def _through_json(state: CampaignState) -> CampaignState:
    return CampaignState.model_validate(json.loads(json.dumps(state.model_dump(mode="json"))))
