"""Export the histories of a campaign and its nodes as goldens: `python -m tests.histories.record CAMPAIGN LABEL`.

Run it against a running stack (`anabasis up`), whenever a workflow changes in a way that brings new commands; the old
files stay, since old campaigns must replay too.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from workers.connect import connect, exit_cleanly

FOLDER = Path(__file__).parent


async def record(campaign: str, label: str) -> int:
    """Write one file for each run of each workflow; returns how many."""
    client = await connect()
    count = 0
    async for workflow in client.list_workflows(f'WorkflowId STARTS_WITH "campaign/{campaign}"'):
        own = workflow.id == f"campaign/{campaign}"
        if not own and not workflow.id.startswith(f"campaign/{campaign}/"):
            continue
        history = await client.get_workflow_handle(workflow.id, run_id=workflow.run_id).fetch_history()
        name = workflow.id.removeprefix(f"campaign/{campaign}").strip("/").replace("/", "-") or "campaign"
        (FOLDER / f"{label}.{name}.{count}.json").write_text(history.to_json())
        count += 1
    return count


if __name__ == "__main__":
    print(asyncio.run(record(sys.argv[1], sys.argv[2])), "histories")
    exit_cleanly(0)
