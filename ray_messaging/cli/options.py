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
            "A rule with its settings; repeat the option for more rules. A round is a step, or the whole trace of a "
            "replay. Write rules like these: "
            f"{'; '.join(known.example for known in KNOWN.values())}."
        ),
    ),
]
