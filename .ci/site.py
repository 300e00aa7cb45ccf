"""Hooks of mkdocs: pages that are not in docs/, and a reference page of all public names."""

import ast
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
# Pages that lie elsewhere in the repository, and docs/README.md, which would be an index beside index.md.
PAGES = {
    "README.md": "index.md",
    "docs/README.md": "pages.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "tests/faults/README.md": "faults.md",
    "benchmarks/README.md": "measuring.md",
    "benchmarks/results/benchmarks.md": "benchmarks.md",
    "benchmarks/scale/README.md": "scale.md",
}
# Classes that users meet as results, with no name in the package: the reference has their calls, too.
RESULTS = (
    "steps.step.Step",
    "cluster.handles.experiment_steps.ExperimentSteps",
    "cluster.run.agent.Agent",
    "cluster.run.crowd.Crowd",
    "audiences.heard.Heard",
    "cluster.handles.dead_letters.DeadLetters",
    "transaction.Transaction",
    "models.Chat",
)
ZOO = "examples/zoo.md"  # one page has all programs of the folder
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    files.remove(files.get_file_from_path("README.md"))
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_with_links(source, (ROOT / source).read_text())))
    files.append(File.generated(config, "reference.md", content=_reference()))
    for plot in sorted((ROOT / "benchmarks/results").glob("*.png")):
        files.append(File.generated(config, plot.name, abs_src_path=str(plot)))
    for example in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {example.name}\n\n```python\n{example.read_text()}```\n"
        files.append(File.generated(config, f"examples/{example.stem}.md", content=text))
    files.append(File.generated(config, ZOO, content=_zoo()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let the links of a page in docs/ lead to pages of the site."""
    source = page.file.src_uri
    return markdown if source in {*PAGES.values(), "reference.md"} else _with_links(f"docs/{source}", markdown)


def _with_links(source: str, text: str) -> str:
    """Return a page with links as the site has them; those to code become plain text."""

    def led(match: re.Match[str]) -> str:
        target = (ROOT / source).parent.joinpath(match[2]).resolve()
        if not target.exists():
            return match[0]  # mkdocs names it
        name = target.relative_to(ROOT).as_posix()
        page = PAGES.get(name) or name.removeprefix("docs/")
        if name.startswith("examples/") and target.suffix == ".py":
            page = ZOO if target.parent.name == "zoo" else f"examples/{target.stem}.md"
        elif not name.startswith("docs/") and name not in PAGES:
            page = "pages.md"  # code, which the site has not
        here = Path(PAGES.get(source) or source.removeprefix("docs/")).parent
        return f"{match[1]}{'../' * len(here.parts)}{page}{match[3]}"

    return LINK.sub(led, text)


def _zoo() -> str:
    """Return the page of the zoo's programs."""
    programs = sorted((ROOT / "examples/zoo").glob("*.py"))
    return "# The zoo\n\n" + "\n".join(f"## {each.name}\n\n```python\n{each.read_text()}```\n" for each in programs)


def _reference() -> str:
    """Return the page of all public names, and of the classes of results, from their docstrings."""
    values = _constants("ray_messaging/__init__.py")
    homes = values["_HOMES"]
    names = [name for name in values["__all__"] if name not in values["_MODULES"]]
    rules = sorted(set(_constants("ray_messaging/interception/rules/__init__.py")["__all__"]) - set(names))
    sections = {
        "Names": [f"{homes[name]}.{name}" for name in names if name in homes],
        "Results": [f"ray_messaging.{name}" for name in RESULTS],
        "Rules": [f"ray_messaging.interception.rules.{name}" for name in rules],
        "Errors": [f"ray_messaging.errors.{name}" for name in names if name not in homes],
    }
    lines = ["# Reference", "", "The public names, from their docstrings. [The overview](api.md) groups them.", ""]
    for section, places in sections.items():
        lines += [f"## {section}", ""]
        without_fields = "    options:\n      members: false\n" if section == "Errors" else ""
        lines += [f"::: {place}\n{without_fields}" for place in places]
    return "\n".join(lines)


def _constants(path: str) -> dict[str, Any]:
    """Return the literals that a module binds to names."""
    found = {}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # no literal
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found
