"""The command `ray-messaging metrics`: the metrics of an experiment as text, and a dashboard for Grafana."""

import os
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.session import join_experiment, output
from ray_messaging.errors import ConfigError

app = typer.Typer(help="Show metrics, or write a dashboard for Grafana.", no_args_is_help=True, rich_markup_mode=None)

_FILE = "ray_messaging_grafana_dashboard.json"


@app.command(short_help="Print the metrics of an experiment.")
def show(exp_id: Annotated[str, typer.Argument(metavar="EXP_ID", help="A running experiment.")]) -> None:
    """Print the metrics of a running experiment, in Prometheus' format."""
    with join_experiment(exp_id, "start the experiment") as messaging:
        try:
            typer.echo(messaging.metrics_text(), nl=False)
        except ImportError as error:
            raise ConfigError(str(error)) from error


@app.command(short_help="Write a dashboard for Grafana.")
def dashboard(
    folder: Annotated[
        Path | None,
        typer.Argument(
            metavar="[FOLDER]", help="Where Grafana finds it; by default where Ray puts its own dashboards."
        ),
    ] = None,
) -> None:
    """Write a dashboard for Grafana, which shows the metrics that Ray exports to Prometheus with metrics=True."""
    given = os.environ.get("RAY_METRICS_GRAFANA_DASHBOARD_OUTPUT_DIR")
    session = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "session_latest")  # noqa: S108 - Ray's own default
    target = folder or (Path(given) if given else session / "metrics" / "grafana" / "dashboards")
    if not target.is_dir():
        raise ConfigError(
            f"there is no folder {target}: name the folder from which your Grafana takes dashboards. Or name no "
            "folder, and start Ray with its own dashboard (pip install 'ray[default]'; ray start --head): Ray then "
            "makes a folder for dashboards of Grafana"
        )
    text = files("ray_messaging.observability.metrics").joinpath("grafana_dashboard.json").read_text("utf-8")
    target.joinpath(_FILE).write_text(text, encoding="utf-8")
    output().print(f"The dashboard is in {target / _FILE}.")
