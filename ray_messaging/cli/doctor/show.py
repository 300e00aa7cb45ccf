"""What the doctor prints: a table on a terminal, else a line for each finding."""

from rich.console import Console
from rich.text import Text

from ray_messaging.cli.show import plain_table, print_table
from ray_messaging.observability.health.findings import Finding, Health

_ROOM = 80  # columns that a table needs to be read
_STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red"}


def show_health(console: Console, health: Health) -> None:
    """Print what was found: problems last, where they are seen."""
    well = [finding for finding in health.findings if finding.level == "ok"]
    problems = health.problems[::-1]
    if console.is_terminal and console.width >= _ROOM:
        _table(console, f"Health of {health.subject}", [*well, *problems])
    else:
        for finding in [*well, *problems]:
            console.print(str(finding))
    severe = sum(finding.level == "critical" for finding in problems)
    counts = (f"{severe} critical" * bool(severe), f"{len(problems) - severe} to watch" * (len(problems) > severe))
    found = ", ".join(filter(None, counts)) or "ok"
    console.print(Text(f"Health of {health.subject}: {found}", style=_STYLES[health.level]))


def _table(console: Console, title: str, findings: list[Finding]) -> None:
    table = plain_table(title)
    for name in ("level", "what", "found", "what to do"):
        table.add_column(name, no_wrap=name == "level", overflow="fold")
    for finding in findings:
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.what, finding.value, finding.remedy)
    print_table(console, table)
