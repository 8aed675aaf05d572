"""The registry's models as a table, and as files in a folder of your choice."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from anabasis.campaign.records import BlobRef, ModelVersion
from anabasis.errors import CorruptData, UserError
from anabasis.report import words
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import get_blob


def models_table(models: list[ModelVersion], *, width: int = 100, color: bool = True) -> str:
    """One row per published version, newest last; or a line that says there is none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from anabasis.report.terminal import to_text

    if not models:
        return "no model is published yet\n"
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("model", "number", "campaign", "version", "loss", "validation", "tokens", "size", "published"):
        table.add_column(name, justify="left" if name in {"model", "campaign", "published"} else "right", no_wrap=True)
    for model in sorted(models, key=lambda item: (item.published_at, item.model, item.number)):
        cells = (
            words.plain(model.model),
            str(model.number),
            words.plain(model.campaign),
            str(model.campaign_version),
            words.loss(model.loss),
            words.loss(model.validation_loss),
            words.count(model.tokens_total),
            words.size(sum(blob.size_bytes for blob in model.files.values())),
            words.moment(model.published_at),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return to_text([table], width=width, color=color)


def export_model(
    store: ObjectStore,
    model: ModelVersion,
    directory: Path | str,
    *,
    overwrite: bool = False,
    on_file: Callable[[str, int], None] | None = None,
) -> list[Path]:
    """Copy a published model's files into a folder (made if need be), each verified by its hash.

    A file that is there already with the same bytes is left alone, so that an interrupted export can be repeated.

    Args:
        store: the store's root.
        on_file: called with name and size in bytes before each file.

    Raises:
        CorruptData: a blob is not what its hash promises, or the registry names a file outside the folder.
        UserError: a file is there with other content (and not `overwrite`), or the folder cannot be written.
    """
    folder = Path(directory)
    for name in model.files:
        if Path(name).name != name or name in {"", ".", ".."} or "\\" in name:
            raise CorruptData(f"{words.plain(model.model)} {model.number}: {name!r} is not a plain file name")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [
            _export(store, blob, folder / name, overwrite=overwrite, on_file=on_file)
            for name, blob in sorted(model.files.items())
        ]
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}; choose another folder") from None


def _export(
    store: ObjectStore,
    blob: BlobRef,
    path: Path,
    *,
    overwrite: bool,
    on_file: Callable[[str, int], None] | None,
) -> Path:
    if on_file:
        on_file(path.name, blob.size_bytes)
    content = get_blob(store, blob)
    if path.exists():
        if path.is_file() and path.read_bytes() == content:
            return path
        if not overwrite:
            raise UserError(f"{path} exists with other content; choose another folder or overwrite it")
    handle, name = tempfile.mkstemp(prefix=f".{path.name[:40]}-", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except OSError:
        Path(name).unlink(missing_ok=True)
        raise
    return path
