"""`ray-messaging doctor`: an experiment, a server, or this machine."""

import json
from typing import Annotated

import typer

from ray_messaging.addressing.channels import check_name
from ray_messaging.cli.doctor.experiment import examine_experiment
from ray_messaging.cli.doctor.machine import examine_machine
from ray_messaging.cli.doctor.server import examine_server
from ray_messaging.cli.doctor.show import show_health
from ray_messaging.cli.session import clean_errors, output
from ray_messaging.config import RedisConfig
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.observability.health.findings import Health

CRITICAL = 1

ExpId = Annotated[str | None, typer.Argument(metavar="EXP_ID", help="An experiment that runs.")]
Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="A server of yours, redis://host:port/db, before you start on it."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs: one object.")]


def _experiment(exp_id: str, config: RedisConfig | None) -> Health:
    try:
        return examine_experiment(exp_id, config)
    except (UnknownName, ConfigError):
        if config is None:
            raise
        return examine_server(config, exp_id)  # it does not run yet


def doctor(exp_id: ExpId = None, redis: Redis = None, as_json: AsJson = False) -> None:
    """Say what is well and what is not, and what to do about it.

    Of an experiment that runs: its server, its actors and their loops, mailboxes, log and dead letters. With --redis
    alone: whether that server will do; what we need is tried in a key space of its own, and removed (with EXP_ID of one
    that does not run yet: in that experiment's). With neither: this machine; an embedded server is started and stopped.

    The exit code is 0 where all is well or there are only warnings, 1 where something is critical, 2 where it could not
    be examined.
    """
    with clean_errors():
        config = None if redis is None else RedisConfig.from_url(redis)
        if exp_id is not None:
            health = _experiment(check_name("exp_id", exp_id), config)
        elif config is not None:
            health = examine_server(config)
        else:
            health = examine_machine()
        if as_json:
            typer.echo(json.dumps(health.to_dict()))
        else:
            show_health(output(), health)
    if health.level == "critical":
        raise typer.Exit(CRITICAL)
