"""All pages: every link leads somewhere. docs/architecture.md and CONTRIBUTING.md: every path that they name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
FOUND = [page for folder in ("docs", "benchmarks", "tests/faults") for page in (ROOT / folder).rglob("*.md")]
PAGES = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *sorted(str(page.relative_to(ROOT)) for page in FOUND)]
FOLDERS = ("tests/", "docs/", "benchmarks/", "ray_messaging/", ".ci/")
PATH = re.compile(r"`([\w./]+(?:/|\.(?:py|lua|md)))`")


def without_blocks(page):
    """Return a page's text, but for its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    """Return the anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def missing(text, base):
    """Return the paths in code that do not exist; a path that does not begin with a folder's name is under `base`."""
    return [
        path for path in PATH.findall(text) if not (ROOT / ("" if path.startswith(FOLDERS) else base) / path).exists()
    ]


@pytest.mark.parametrize(("page", "base"), [("docs/architecture.md", "ray_messaging"), ("CONTRIBUTING.md", "")])
def test_every_path_exists(page, base):
    assert missing(f"{without_blocks(page)} `wire/of_nothing.py`", base) == ["wire/of_nothing.py"]


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", without_blocks(page)):
        path, _, anchor = link.partition("#")
        if link.startswith("http"):
            continue
        target = ((ROOT / page).parent / path).resolve() if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(str(target.relative_to(ROOT)))):
            broken.append(link)
    assert broken == []
