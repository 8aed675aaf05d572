from __future__ import annotations

from pathlib import Path

import pytest

from anabasis.campaign.records import BlobRef, ModelVersion
from anabasis.errors import CorruptData, ObjectNotFound, UserError
from anabasis.report.models import export_model, models_table
from anabasis.storage.base import ObjectStore
from anabasis.storage.blobs import hash_bytes
from tests.report.samples import START

FILES = {"model.safetensors": b"weights", "config.json": b"{}", "README.md": b"# demo"}


def published(store: ObjectStore, files: dict[str, bytes] | None = None) -> ModelVersion:
    blobs: dict[str, BlobRef] = {}
    for name, content in (files or FILES).items():
        digest = hash_bytes(content)
        key = f"models/demo/files/{digest}/file"
        store.put(key, content)
        blobs[name] = BlobRef(key=key, hash=digest, size_bytes=len(content))
    return ModelVersion(
        model="demo",
        number=3,
        campaign="demo",
        campaign_version=20,
        files=blobs,
        loss=2.5,
        validation_loss=2.75,
        tokens_total=1_234_567,
        published_at=START,
    )


def test_the_table_has_a_row_per_model(store: ObjectStore) -> None:
    text = models_table([published(store)], color=False)
    for said in ("demo", "3", "20", "2.5000", "2.7500", "1.2 M", "2027-01-15 08:00:00 Z"):
        assert said in text
    assert models_table([]) == "no model is published yet\n"


def test_all_files_are_exported(store: ObjectStore, tmp_path: Path) -> None:
    seen: list[str] = []
    folder = tmp_path / "new" / "folder"
    written = export_model(store, published(store), folder, on_file=lambda name, _: seen.append(name))
    assert {path.name: path.read_bytes() for path in written} == FILES
    assert sorted(path.name for path in folder.iterdir()) == sorted(FILES) == seen


def test_an_export_can_be_repeated_but_overwrites_nothing_else(store: ObjectStore, tmp_path: Path) -> None:
    model = published(store)
    export_model(store, model, tmp_path / "out")
    export_model(store, model, tmp_path / "out")
    (tmp_path / "out" / "config.json").write_bytes(b"mine")
    with pytest.raises(UserError, match="exists with other content"):
        export_model(store, model, tmp_path / "out")
    export_model(store, model, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "config.json").read_bytes() == b"{}"


def test_a_blob_that_rotted_is_not_exported(store: ObjectStore, tmp_path: Path) -> None:
    model = published(store)
    store.put(model.files["model.safetensors"].key, b"rotten!")
    with pytest.raises(CorruptData):
        export_model(store, model, tmp_path / "out")
    assert not (tmp_path / "out" / "model.safetensors").exists()


def test_a_missing_blob_is_named(store: ObjectStore, tmp_path: Path) -> None:
    model = published(store)
    store.delete(model.files["README.md"].key)
    with pytest.raises(ObjectNotFound):
        export_model(store, model, tmp_path / "out")


@pytest.mark.parametrize("name", ["../escape", "/etc/escape", "a/b", "..", "a\\b", ""])
def test_the_registry_cannot_write_outside_the_folder(store: ObjectStore, tmp_path: Path, name: str) -> None:
    with pytest.raises(CorruptData, match="not a plain file name"):
        export_model(store, published(store, {name: b"x"}), tmp_path / "out")
    assert list(tmp_path.glob("**/*escape*")) == []


def test_a_folder_that_cannot_be_made_is_an_error_of_one_line(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot write to"):
        export_model(store, published(store), tmp_path / "file" / "out")
