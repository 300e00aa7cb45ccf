"""The command `ray-messaging surveys`, which lists the surveys of a running experiment."""

from typing import Annotated

import typer
from msgspec.json import encode

from ray_messaging.cli.options import Json
from ray_messaging.cli.session import join_experiment, output, print_json
from ray_messaging.cli.show import plain_table, print_table
from ray_messaging.common.texts import utc_time
from ray_messaging.surveys.tally import ANSWERED, INVALID, LOST, OPEN, STATES, STOPPED

_COUNTS: list[str] = STATES[[ANSWERED, OPEN, INVALID, STOPPED, LOST]].tolist()


def surveys(
    exp_id: Annotated[str, typer.Argument(metavar="EXP_ID", help="A running experiment.")], as_json: Json = False
) -> None:
    """List the surveys of an experiment, each with its number of agents that have answered, are pending, and so on."""
    with join_experiment(exp_id, "start the experiment") as messaging:
        found = [messaging.survey(survey_id) for survey_id in messaging.surveys()]
        if as_json:
            print_json(*(encode({"id": each.id, "created_at": each.created_at, **each.counts()}) for each in found))
            return
        names = ("id", "created at (UTC)", *_COUNTS)
        table = plain_table("", *names, right=_COUNTS, whole=names)
        for each in found:
            counts = each.counts()
            table.add_row(each.id, utc_time(each.created_at)[:19], *(f"{counts[name]:,}" for name in _COUNTS))
        if found:
            print_table(output(), table)
        else:
            output().print(f"Experiment {exp_id} has no surveys.")
