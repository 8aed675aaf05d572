"""Start, watch and steer campaigns from Python.

    from anabasis.client import Anabasis

    anabasis = await Anabasis.connect()
    campaign = await anabasis.start({"name": "demo", "target": {"rounds": 50}})
    await campaign.scale(8)
    print(await campaign.status())
    print(await campaign.result())

`Anabasis(client)` takes a connected `temporalio.client.Client` instead. Everything that waits has a deadline
(`Deadlines`); everything that fails raises an error of `anabasis.errors`. A short-lived program that used this should
end with `workers.connect.exit_cleanly` (temporalio/sdk-python issue 300).
"""

from anabasis.client.campaigns import Anabasis
from anabasis.client.handle import CampaignHandle
from anabasis.client.rpc import Deadlines
from anabasis.client.summary import CampaignSummary, spec_hash, workflow_id

__all__ = ["Anabasis", "CampaignHandle", "CampaignSummary", "Deadlines", "spec_hash", "workflow_id"]
