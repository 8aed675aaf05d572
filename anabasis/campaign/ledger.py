"""The goodput ledger: every paid node-second is in exactly one bucket.

Paid time runs from the provider's answer to the read that says the machine is gone, by the workflow's clock.
What happened inside comes from committed rounds, by each node's own monotonic clock; when the two disagree,
the paid time wins and the parts are scaled, so that buckets always sum to what is paid.
"""

from __future__ import annotations

from anabasis.campaign.state import CampaignState, NodeLife, Totals
from anabasis.campaign.status import Bucket, NodeState


def paid_seconds(life: NodeLife, *, now: float) -> float:
    """Seconds paid for so far."""
    return max(0.0, now - life.paid_from) if life.paid_from is not None else 0.0


def life_buckets(life: NodeLife, *, now: float) -> dict[Bucket, float]:
    """Split the paid seconds of one node life up to `now`; the values sum to `paid_seconds`.

    Returns:
        seconds by bucket, only those above zero.
    """
    paid = paid_seconds(life, now=now)
    if life.paid_from is None or paid <= 0:
        return {}
    leaving = min(now, life.leaving_at) if life.leaving_at is not None else now
    boot_end = min(leaving, life.ready_at) if life.ready_at is not None else leaving
    boot = min(paid, max(0.0, boot_end - life.paid_from))
    release = min(paid - boot, max(0.0, now - leaving))
    middle = max(0.0, paid - boot - release)
    paused = min(middle, _paused(life, now=leaving))
    rest = middle - paused
    parts = {
        Bucket.TRAIN: max(0.0, life.train_seconds),
        Bucket.SYNC: max(0.0, life.sync_seconds),
        # A node that sat out a pause reports it as waiting; the pause is accounted for already.
        Bucket.WAIT: max(0.0, life.wait_seconds - paused),
    }
    reported = sum(parts.values())
    scale = rest / reported if reported > rest else 1.0
    buckets = {bucket: seconds * scale for bucket, seconds in parts.items()}
    over = life.leaving_at is not None or life.state is NodeState.GONE
    buckets[Bucket.LOST if over else Bucket.OPEN] = max(0.0, rest - sum(buckets.values()))
    buckets |= {Bucket.BOOT: boot, Bucket.RELEASE: release, Bucket.PAUSED: paused}
    return {bucket: seconds for bucket, seconds in buckets.items() if seconds > 0}


def _paused(life: NodeLife, *, now: float) -> float:
    running = max(0.0, now - life.paused_from) if life.paused_from is not None else 0.0
    return life.paused_seconds + running


def close_life(totals: Totals, life: NodeLife, *, now: float) -> None:
    """Move a life that is over into the totals."""
    paid = paid_seconds(life, now=now)
    totals.paid_seconds += paid
    totals.cost += paid / 3_600 * life.price_per_hour
    totals.tokens_by_slot[life.slot] = totals.tokens_by_slot.get(life.slot, 0) + life.tokens
    for bucket, seconds in life_buckets(life, now=now).items():
        totals.buckets[bucket] = totals.buckets.get(bucket, 0.0) + seconds


def campaign_ledger(state: CampaignState, *, now: float) -> tuple[float, float, dict[Bucket, float]]:
    """Paid node-seconds, cost and buckets of the whole campaign so far, living nodes included."""
    paid, cost, buckets = state.totals.paid_seconds, state.totals.cost, dict(state.totals.buckets)
    for life in state.nodes.values():
        seconds = paid_seconds(life, now=now)
        paid += seconds
        cost += seconds / 3_600 * life.price_per_hour
        for bucket, part in life_buckets(life, now=now).items():
            buckets[bucket] = buckets.get(bucket, 0.0) + part
    return paid, cost, buckets


def budget_exhausted_at(state: CampaignState, *, now: float) -> tuple[float | None, float]:
    """When the budget ends at the present burn, and the share that is spent now (0 when there is none).

    Returns:
        (time in seconds since the epoch, `now` or earlier when it is spent; None without budget or burn), share.
    """
    paid, cost, _ = campaign_ledger(state, now=now)
    paying = [life for life in state.nodes.values() if life.paid_from is not None]
    ends: list[float] = []
    share = 0.0
    if state.max_cost is not None:
        burn = sum(life.price_per_hour for life in paying) / 3_600
        share = cost / state.max_cost
        if share >= 1 or burn > 0:
            ends.append(now if share >= 1 else now + (state.max_cost - cost) / burn)
    if state.max_node_hours is not None:
        hours = paid / 3_600
        share = max(share, hours / state.max_node_hours)
        if hours >= state.max_node_hours or paying:
            ends.append(
                now
                if hours >= state.max_node_hours
                else now + (state.max_node_hours - hours) * 3_600 / max(1, len(paying))
            )
    return (min(ends) if ends else None), share
