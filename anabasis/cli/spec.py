"""`anabasis spec`: what can be said in a campaign spec."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from anabasis.campaign.spec import CampaignSpec, describe_spec
from anabasis.cli.app import app

EXAMPLE = """\
# A small campaign on this machine: a GPT on the source of Python's own library. Start it with
#   anabasis start campaign.yaml --watch
# Everything but the name has a default: `anabasis spec` shows and explains them all.
name: demo
recipe: gpt
recipe_options: {layers: 2, width: 128, heads: 4}
target:
  rounds: 20
data:
  url: python-stdlib        # or a path, a folder of text files, an https:// or s3:// URL
  sequence_length: 128
fleet:
  slots: 4
  provider: local
training:
  inner_steps: 20
  batch_size: 8
  inner_lr: 3e-3
checkpoint:
  every_rounds: 10
"""


@app.command(rich_help_panel="Campaigns")
def spec(
    example: Annotated[bool, typer.Option("--example", help="A short spec to begin with.")] = False,
    json_schema: Annotated[bool, typer.Option("--json-schema", help="JSON Schema, for editors and forms.")] = False,
) -> None:
    """Show the whole campaign spec as YAML: every field, what it means, and its default."""
    if example and json_schema:
        raise typer.BadParameter("--example and --json-schema exclude each other")
    if json_schema:
        print(json.dumps(CampaignSpec.model_json_schema(), indent=2))
    elif example:
        print(EXAMPLE, end="")
    else:
        print(describe_spec().strip())
