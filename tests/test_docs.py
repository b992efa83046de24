"""Documentation that can be checked: generated pages, links, and files that must parse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from docs.generate import REFERENCE, pages

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = sorted([REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")])


@pytest.mark.parametrize("name", sorted(pages()))
def test_generated_pages_are_what_the_code_says(name: str) -> None:
    assert (REFERENCE / name).read_text() == pages()[name], "run `make docs`"


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(REPOSITORY)))
def test_every_link_leads_somewhere(page: Path) -> None:
    broken = [
        target
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
        if not target.startswith(("http://", "https://", "mailto:")) and not (page.parent / target).exists()
    ]
    assert broken == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    text = (REPOSITORY / "README.md").read_text()
    lost = [
        str(p.relative_to(REPOSITORY))
        for p in PAGES
        if p.name != "README.md" and str(p.relative_to(REPOSITORY)) not in text
    ]
    assert lost == []


def test_every_requirement_has_its_line_in_the_list_of_dependencies() -> None:
    listed = (REPOSITORY / "docs/dependencies.md").read_text()
    named = [
        re.split(r"[\[=<> ]", line)[0]
        for line in (REPOSITORY / "requirements.in").read_text().splitlines()
        if line and not line.startswith("#")
    ]
    assert [name for name in named if f"`{name}`" not in listed] == []


def test_the_compose_file_names_only_variables_that_are_explained() -> None:
    text = (REPOSITORY / "docker-compose.yaml").read_text()
    explained = set(re.findall(r"^([A-Z_]+)=", (REPOSITORY / ".env.example").read_text(), re.MULTILINE))
    used = set(re.findall(r"\$\{([A-Z_]+)", text))
    assert used == explained
    services = yaml.safe_load(text)["services"]
    assert {"postgres", "api-server", "scheduler", "dag-processor", "triggerer", "ray-head"} <= set(services)


def test_the_image_is_built_from_files_that_are_there() -> None:
    sources = re.findall(r"^COPY (.+) \S+$", (REPOSITORY / "docker/Dockerfile").read_text(), re.MULTILINE)
    assert sources
    assert [name for line in sources for name in line.split() if not (REPOSITORY / name).exists()] == []
