"""`ray-messaging doctor`: health of an experiment, a server, or this machine."""

import json
import secrets
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from ray_messaging.addressing.channels import check_name
from ray_messaging.cli.doctor_machine import examine_machine
from ray_messaging.cli.options import Json
from ray_messaging.cli.session import output
from ray_messaging.cli.show import plain_table, print_table
from ray_messaging.cluster.handles.connection import experiments_here, unknown_experiment
from ray_messaging.cluster.health_check import check_health, check_servers
from ray_messaging.cluster.ray_clusters import join_ray
from ray_messaging.cluster.spec import Experiment
from ray_messaging.config import MessagingConfig, RedisConfig
from ray_messaging.errors import ConfigError, UnknownName
from ray_messaging.observability.health.findings import Finding, Health
from ray_messaging.observability.health.known_holes import check_known_holes
from ray_messaging.transports.backend import backend_of

CRITICAL = 1
_TABLE_WIDTH = 80  # the least width of a terminal, in columns, for a table
_STYLES = {"ok": "green", "warning": "yellow", "critical": "bold red"}

ExpId = Annotated[str | None, typer.Argument(metavar="EXP_ID", help="A running experiment.")]
Redis = Annotated[
    str | None,
    typer.Option("--redis", metavar="URL", help="Check this server, redis://host:port/db, before its first use."),
]


def examine_experiment(exp_id: str, config: RedisConfig | None) -> Health:
    """Return an experiment's health. If its interceptor does not answer, `config` says where its server is.

    Raises: ConfigError if no Ray cluster is found; UnknownName if the experiment does not run.
    """
    if not join_ray(exp_id):
        raise ConfigError(
            f"no Ray cluster was found that experiment {exp_id!r} could run in: set RAY_ADDRESS to the host:port of "
            "its cluster"
        )
    if exp_id not in (there := experiments_here()):  # it has just ended, or `join_ray` did not look for it
        raise unknown_experiment(exp_id, there)
    experiment = None if config is None else Experiment(exp_id, "", MessagingConfig(), redis=config)
    return check_health(exp_id, experiment, {})


def examine_server(config: RedisConfig, exp_id: str | None = None) -> Health:
    """Return the health of a server for the experiment `exp_id` (None: for an experiment of any name)."""
    facts = backend_of(config).probe(exp_id or f"doctor-{secrets.token_hex(8)}")
    holes = [check_known_holes(facts.info)] if facts.info else []
    return Health(f"the server at {facts.where}", [*check_servers(facts, allow_eviction=config.allow_eviction), *holes])


def doctor(exp_id: ExpId = None, redis: Redis = None, as_json: Json = False) -> None:
    """Check the health of an experiment, a server or this machine, and suggest remedies.

    With EXP_ID of a running experiment, check its server, actors, background tasks, mailboxes, log and dead letters.
    With --redis alone, check whether that server is suitable, and whether its user has all rights that are needed. With
    --redis and the EXP_ID of an experiment that does not run yet, check the rights on the keys of that experiment. With
    neither, check this machine, and start and stop an embedded server.

    The exit code is 0 if no finding is critical, 1 if one is, and 2 if the check itself failed.
    """
    config = None if redis is None else RedisConfig.from_url(redis)
    if exp_id is not None:
        check_name("exp_id", exp_id)
        try:
            health = examine_experiment(exp_id, config)
        except (UnknownName, ConfigError):
            if config is None:
                raise
            health = examine_server(config, exp_id)  # no running experiment with this name was found
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


def show_health(console: Console, health: Health) -> None:
    """Print the findings, the problems last: on a terminal as a table, otherwise as one line for each finding."""
    well = [finding for finding in health.findings if finding.level == "ok"]
    problems = health.problems[::-1]
    if console.is_terminal and console.width >= _TABLE_WIDTH:
        _table(console, f"Health of {health.subject}", [*well, *problems])
    else:
        for finding in [*well, *problems]:
            console.print(str(finding))
    severe = sum(finding.level == "critical" for finding in problems)
    counts = (f"{severe} critical" * bool(severe), f"{len(problems) - severe} to watch" * (len(problems) > severe))
    found = ", ".join(filter(None, counts)) or "ok"
    console.print(Text(f"Health of {health.subject}: {found}", style=_STYLES[health.level]))


def _table(console: Console, title: str, findings: list[Finding]) -> None:
    table = plain_table(title, "level", "check", "found", "what to do", whole=["level"])
    for finding in findings:
        table.add_row(Text(finding.level, style=_STYLES[finding.level]), finding.what, finding.value, finding.remedy)
    print_table(console, table)
