"""Search attributes of a campaign: with these, the Web UI's list of workflows is a dashboard."""

from __future__ import annotations

SEARCH_ATTRIBUTES: dict[str, str] = {
    "Campaign": "Keyword",
    "Phase": "Keyword",
    "Round": "Int",
    "Loss": "Double",
    "Tokens": "Int",
    "ReadyNodes": "Int",
    "Cost": "Double",
}
"""Name → Temporal's value type."""
