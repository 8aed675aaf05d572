"""`anabasis models` and `anabasis export`: what campaigns have published."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import BaseModel

from anabasis.cli.app import app
from anabasis.cli.options import AsJson, Store
from anabasis.cli.session import console, print_json
from anabasis.errors import ObjectNotFound
from anabasis.report import words

if TYPE_CHECKING:
    from anabasis.storage.base import ObjectStore

PANEL = "Results"


class Exported(BaseModel):
    """What `export --json` prints; `files` is name → bytes."""

    model: str
    number: int
    campaign: str
    campaign_version: int
    folder: str
    files: dict[str, int]


@app.command(rich_help_panel=PANEL)
def models(
    model: Annotated[str | None, typer.Argument(help="Only this model's versions.", show_default=False)] = None,
    store: Store = None,
    as_json: AsJson = False,
) -> None:
    """List published models."""
    from anabasis.report.models import models_table
    from anabasis.storage.registry import list_models

    found = [one for one in list_models(open_root(store)) if model in (None, one.model)]
    if as_json:
        print_json(found)
        return
    screen = console()
    print(models_table(found, width=screen.width, color=screen.color_system is not None), end="")


@app.command(rich_help_panel=PANEL)
def export(  # noqa: PLR0917 (Typer passes them by keyword)
    model: Annotated[str, typer.Argument(help="The model: usually the campaign's name.", show_default=False)],
    folder: Annotated[Path | None, typer.Argument(help="Where to (default: ./<model>-<number>).")] = None,
    number: Annotated[int | None, typer.Option("--number", min=1, help="Which version (default: the newest).")] = None,
    store: Store = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there and differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write the files of a published model to a folder. Every file is checked against its hash."""
    from anabasis.report.models import export_model
    from anabasis.storage.registry import get_model

    root = open_root(store)
    chosen = get_model(root, model, number)
    target = folder if folder is not None else Path(f"{chosen.model}-{chosen.number}")
    written = {path.name: path.stat().st_size for path in export_model(root, chosen, target, overwrite=force)}
    if as_json:
        exported = Exported(
            model=chosen.model,
            number=chosen.number,
            campaign=chosen.campaign,
            campaign_version=chosen.campaign_version,
            folder=str(target.absolute()),
            files=written,
        )
        print_json(exported)
        return
    total = words.size(sum(written.values()))
    print(f"{chosen.model} {chosen.number}: {words.plural(len(written), 'file')}, {total}, in {target}")


def open_root(url: str | None) -> ObjectStore:
    """The store at the URL, or the default one. Raises `ObjectNotFound` instead of making a folder."""
    from anabasis.cli.curves import local_folder
    from anabasis.storage import default_store_url, open_store

    chosen = url or default_store_url()
    folder = local_folder(chosen)
    if folder is not None and not folder.is_dir():
        raise ObjectNotFound(f"there is no store at {chosen}: name one with --store or ANABASIS_STORE")
    return open_store(chosen)
