"""Options that several commands have, as types."""

from typing import Annotated

import typer

from ray_messaging.cli.rule_specs import KNOWN

Json = Annotated[bool, typer.Option("--json", help="Print JSON for programs: one object per line.")]
Rules = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SPEC",
        help=(
            "A rule; repeatable. Limits per round count over the whole run. Rules: "
            f"{'; '.join(known.example for known in KNOWN.values())}."
        ),
    ),
]
