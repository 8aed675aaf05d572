"""What the documentation shows must work: its specs parse, its Python runs, its generated page is current."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from anabasis.campaign.spec import parse_spec
from anabasis.cli.yaml12 import load_yaml
from anabasis.training.recipe import Recipe
from benchmarks.table import HEAD, table
from scripts.write_spec_docs import TARGET, spec_page

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])


def blocks(language: str) -> list[tuple[str, str]]:
    """(page, body) of the fenced blocks in a language."""
    fenced = re.compile(rf"^```{language}\n(.*?)^```", re.DOTALL | re.MULTILINE)
    return [(page.name, body) for page in PAGES for body in fenced.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(("page", "body"), blocks("yaml"))
def test_specs_in_the_documentation_are_valid(page: str, body: str) -> None:
    parse_spec(load_yaml(body))


@pytest.mark.parametrize("number", range(2))
def test_recipes_in_the_documentation_train(number: int) -> None:
    torch.set_num_threads(1)
    namespace: dict[str, object] = {"__name__": "documented"}
    source = [body for page, body in blocks("python") if page == "recipes.md"][number]
    exec(compile(source, "recipes.md", "exec"), namespace)  # noqa: S102  (our own documentation)
    found = [value for value in namespace.values() if isinstance(value, type) and issubclass(value, Recipe)]
    recipe = next(kind for kind in found if kind is not Recipe)()
    model = recipe.build_model(300, 16)
    own_data = "batches" in vars(type(recipe))
    batch = next(recipe.batches(object(), [[1, 2, 3]])) if own_data else torch.randint(300, (3, 17))  # type: ignore[arg-type]
    recipe.loss(model, batch).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_the_generated_page_is_current() -> None:
    assert TARGET.read_text(encoding="utf-8") == spec_page(), "run python -m scripts.write_spec_docs"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readmes_figures_are_those_of_the_benchmarks() -> None:
    assert HEAD + table() in (ROOT / "README.md").read_text(), "run: python -m benchmarks.table"
