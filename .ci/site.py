"""Hooks of mkdocs: pages that are not in docs/, and a reference of all public names, a page for each theme."""

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

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


class Theme(NamedTuple):
    """A page of the reference: its title, what it is about, and the places of its names below `ray_messaging`.

    A place without a dot is a public name of `ray_messaging`; another place is a class that users meet as a result.
    """

    title: str
    text: str
    names: tuple[str, ...]


THEMES = {
    "messaging": Theme(
        "Messaging",
        "An experiment on a Ray cluster: how it starts and ends, and its settings.",
        ("Messaging", "MessagingConfig", "RedisConfig", "LocalServer", "Health", "Finding", "Tracing"),
    ),
    "groups": Theme(
        "Groups and messages",
        "Agents that send and receive, what they send and receive, questions and surveys.",
        (
            *("Group", "AsyncGroup", "Messager", "Message", "Messages", "Outgoing", "Receipt", "Receipts"),
            *("columns", "Answers", "GroupAnswers", "Survey", "Audience", "audiences.heard.Heard"),
            *("transaction.Transaction", "cluster.handles.dead_letters.DeadLetters"),
        ),
    ),
    "steps": Theme(
        "Steps and models",
        "A simulation in steps: the model's arguments, the run and its result, calls of a language model.",
        (
            *("Agent", "Crowd", "Step", "Steps", "Run", "Result", "run"),
            "cluster.handles.experiment_steps.ExperimentSteps",
            *("Calls", "Price", "models.Chat", "report_usage", "by_content", "grid", "id_tuple"),
            *("Of", "Count", "Gini", "Max", "Mean", "Min", "Quantile", "Share", "Sum"),
            *("testing.repeatability.check_repeatable",),
        ),
    ),
    "rules": Theme(
        "Rules",
        "Which agent may write to which: black lists, graphs, rates, quotas, bans, patterns, and classes of your own. "
        "[Rules](../rules.md) explains them.",
        (),  # all of ray_messaging.rules
    ),
    "log": Theme(
        "Log and queries",
        "The log of all messages, its rows and queries, blocked messages as they happen, and the inspector.",
        ("EventLog", "LogRow", "compare", "BlockedMessage", "BlockedListener", "Inspector"),
    ),
    "studies": Theme(
        "Studies", "Many runs, by parameters and replicates: tables, effects and plots.", ("batch_run", "Study")
    ),
    "errors": Theme(
        "Errors",
        "All errors are in `ray_messaging.errors`, and derive from `MessagingError`. "
        "[The overview](../api.md#errors) groups them.",
        (),  # all of ray_messaging.errors
    ),
    "adapters": Theme(
        "Adapters",
        "Doors for programs that were written for other libraries: [AgentSociety and AgentScope](../migrating.md), "
        "[AgentScope 2](../guides/agentscope.md), [AutoGen](../guides/autogen.md), "
        "[agent-framework](../guides/agent-framework.md), [OASIS](../guides/oasis.md).",
        (
            *("Msg", "compat.mqtt.mqtt_messager.Messager", "compat.mqtt.mqtt_config.MqttConfig"),
            *("compat.agentsociety.Messager", "compat.agentsociety2.OrderedSocialSpace"),
            *("compat.agentscope.RayMessageBus", "compat.agentscope_hub.MsgHub"),
            *("compat.autogen.RayAgentRuntime", "compat.agent_framework.RayWorkflowRunner"),
            "compat.oasis.Channel",
        ),
    ),
}
# Calls between our own modules, which have no underscore, but are nothing for users.
HIDDEN = {
    "Answers": "add|asks_again|change|done|end|fail|seconds_left|take|take_one|waits",
    "AsyncGroup": "ask_into|commit_lease|give_up|give_up_lease|give_up_unacked|reply_to",
    "Calls": "limited|needs_usage",
    "EventLog": "unended",
    "Group": "give_up",
    "GroupAnswers": "add|asks_again|change|done|end|fail|seconds_left|take|take_one|waits",
    "Inspector": "pid",
    "LocalServer": "open_backend",
    "Messager": "directory|relay|subscription",
    "Messages": "exp_id|slices",
    "Messaging": "log_actor",
    "Outgoing": "unnamed",
    "PairCheck": "bars",
    "Receipts": "parts",
    "RedisConfig": "cluster_addresses|sentinel_addresses|without_passwords",
    "Rule": "count_failure|counts_blocked|has_rounds|restored|room",
    "Step": "keep_calls|keep_series|messages",
    "StepRule": "admission",
    "Table": "begin_layer|clear|dump|end_layer|load|popitem|settle|setdefault",
} | dict.fromkeys(("Count", "Gini", "Max", "Mean", "Min", "Quantile", "Share", "Sum"), "kind|merged|partial|value_of")
FIRST_IN_SEARCH = {"rules.md"}  # a search for "black list" would otherwise find the models that have one
ZOO = "examples/zoo.md"  # one page has all programs of the folder
BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
# Columns of code between both side bars on a screen of 1,400 pixels, as assets/site.css has it: in the usual type, and
# in the small type of drawings and whole programs. A longer line, such as a user's rights on a server, wraps.
USUAL, SMALL = 104, 120
LINK = re.compile(r"(\]\()([^)#\s:]+)((?:#[^)\s]*)?\))")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    files.remove(files.get_file_from_path("README.md"))
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_with_links(source, (ROOT / source).read_text())))
    for page, content in _reference().items():
        files.append(File.generated(config, page, content=content))
    for plot in sorted((ROOT / "benchmarks/results").glob("*.png")):
        files.append(File.generated(config, plot.name, abs_src_path=str(plot)))
    for example in sorted((ROOT / "examples").glob("*.py")):
        text = f"# `{example.name}`\n\n```python\n{example.read_text()}```\n"
        files.append(File.generated(config, f"examples/{example.stem}.md", content=text))
    files.append(File.generated(config, ZOO, content=_zoo()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let the links of a page in docs/ lead to pages of the site."""
    source = page.file.src_uri
    if source in FIRST_IN_SEARCH:
        page.meta["search"] = {"boost": 3}
    if source.startswith("reference/"):
        page.meta["search"] = {"boost": 0.5}  # whoever searches wants an explanation first
        return markdown
    if source not in PAGES.values() and not source.startswith("examples/"):
        markdown = _with_links(f"docs/{source}", markdown)
    return BLOCK.sub(_in_small_type, markdown)


def _in_small_type(block: re.Match[str]) -> str:
    """Return a block of code, in small type if it has long lines, which wrap if they are longer still."""
    columns = max(map(len, block["code"].splitlines()), default=0)
    if columns <= USUAL:
        return block[0]
    wraps = " .wraps" if columns > SMALL else ""
    return f"```{{.{block['language'] or 'text'} .wide{wraps}}}\n{block['code']}```"


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
    return "# The zoo\n\n" + "\n".join(f"## `{each.name}`\n\n```python\n{each.read_text()}```\n" for each in programs)


def _reference() -> dict[str, str]:
    """Return the pages of all public names, and of the classes of results, from their docstrings.

    Raises: ValueError if a public name is on no page, or on two.
    """
    values = _constants("ray_messaging/__init__.py")
    homes = values["_HOMES"]
    rules = _constants("ray_messaging/interception/rules/__init__.py")["__all__"]
    errors = [
        node.name
        for node in ast.parse((ROOT / "ray_messaging/errors.py").read_text()).body
        if isinstance(node, ast.ClassDef)
    ]
    places = {key: [_place(name, homes) for name in theme.names] for key, theme in THEMES.items()}
    places["rules"] = [f"ray_messaging.interception.rules.{name}" for name in ("Rule", *sorted({*rules} - {"Rule"}))]
    places["errors"] = [f"ray_messaging.errors.{name}" for name in sorted(errors)]
    shown = Counter(place.rpartition(".")[2] for of_theme in places.values() for place in of_theme)
    public = {*values["__all__"]} - {*values["_MODULES"], "errors"}
    if missing := sorted(name for name in public if shown[name] == 0):
        raise ValueError(f"no page of the reference has {', '.join(missing)}: add the names to THEMES in .ci/site.py")
    return {f"reference/{key}.md": _reference_page(THEMES[key], places[key], key) for key in THEMES}


def _place(name: str, homes: Mapping[str, str]) -> str:
    """Return where a name is defined."""
    return f"ray_messaging.{name}" if "." in name else f"{homes[name]}.{name}"


def _reference_page(theme: Theme, places: Sequence[str], key: str) -> str:
    lines = [f"# {theme.title}", "", theme.text, ""]
    for place in places:
        name = place.rpartition(".")[2]
        options = []
        if key == "errors" and name != "MessagingError":
            options += ["members: false", "inherited_members: false"]
        if key == "rules" and name != "Rule":
            options.append("inherited_members: false")  # each would list the calls of Rule
        if hidden := HIDDEN.get(name) if not place.startswith("ray_messaging.compat") else None:
            options.append(f"filters: ['!^_', '!^({hidden})$']")
        lines.append(f"::: {place}")
        if options:
            lines += ["    options:", *(f"      {option}" for option in options)]
        lines.append("")
    return "\n".join(lines)


def _constants(path: str) -> dict[str, Any]:
    """Return the literals that a module binds to names."""
    found = {}
    for node in ast.parse((ROOT / path).read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):  # no literal
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found
