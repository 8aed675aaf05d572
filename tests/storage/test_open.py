from __future__ import annotations

import os
from pathlib import Path

import pytest

from anabasis.errors import InvalidSpec
from anabasis.storage import default_store_url, open_store
from anabasis.storage.s3 import S3Store


@pytest.mark.parametrize("form", ["{path}", "file://{path}", "file://localhost{path}"])
def test_folders_are_opened_by_path_and_url(tmp_path: Path, form: str) -> None:
    store = open_store(form.format(path=tmp_path / "a store"))
    store.put("k", b"x")
    assert (tmp_path / "a store" / "k").read_bytes() == b"x"
    assert open_store(store.url).get("k") == b"x"
    assert " " not in store.url


def test_relative_paths_and_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert open_store("some/store").url == (tmp_path / "some" / "store").as_uri()
    assert open_store("~/store").url == (tmp_path / "home" / "store").as_uri()


def test_opening_touches_nothing(tmp_path: Path) -> None:
    open_store(str(tmp_path / "store"))
    assert list(tmp_path.iterdir()) == []
    assert isinstance(open_store("s3://nowhere/at/all"), S3Store)
    assert open_store("s3://nowhere/at/all/").child("x").url == "s3://nowhere/at/all/x"


@pytest.mark.parametrize(
    "url",
    ["", "gs://bucket", "http://host/x", "s3://", "s3:///prefix", "s3://b/../c", "file://host/x", "file:x", "a\0b"],
)
def test_what_names_no_store_is_a_problem_of_the_field_store(url: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        open_store(url)
    assert [path for path, _ in caught.value.problems] == ["store"]


def test_credentials_in_a_url_are_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSpec, match="credentials") as caught:
        open_store("s3://key:hunter2@bucket/prefix")
    assert "hunter2" not in str(caught.value)


def test_the_default_is_a_folder_of_the_state_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_store_url() == Path(os.environ["ANABASIS_HOME"], "store").as_uri()
    monkeypatch.setenv("ANABASIS_STORE", "s3://bucket/prefix")
    assert default_store_url() == "s3://bucket/prefix"
    monkeypatch.delenv("ANABASIS_STORE")
    monkeypatch.delenv("ANABASIS_HOME")
    monkeypatch.chdir(tmp_path)
    assert default_store_url() == (tmp_path / ".anabasis" / "store").as_uri()
