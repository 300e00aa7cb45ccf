"""The command `ray-messaging report`."""

from pathlib import Path
from typing import Annotated

import typer

from ray_messaging.cli.log.options import open_log
from ray_messaging.cli.options import Json
from ray_messaging.cli.report.page import page_of
from ray_messaging.cli.session import check_file, clean_errors, output, print_json
from ray_messaging.errors import ConfigError
from ray_messaging.eventlog.reading.paging import json_line


def report(
    log_dir: Annotated[str, typer.Argument(metavar="LOG_DIR", help="A log_dir, or an exp_id that runs.")],
    other: Annotated[str | None, typer.Argument(metavar="[OTHER]", help="Another one, to compare with.")] = None,
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="The new file.")] = Path("report.html"),
    as_json: Json = False,
) -> None:
    """Write a page about a run: settings, traffic, fates, rules, interventions, network; or about two, side by side.

    The page is one HTML file, which opens without a network.
    """
    with clean_errors():
        check_file(file, "choose another file with --file")
        logs = {name: open_log(name) for name in (log_dir, other) if name is not None}
        try:
            text = page_of(logs)
        except ImportError as error:
            raise ConfigError(
                "a report needs matplotlib and networkx: pip install 'ray-messaging[plot,networkx]'"
            ) from error
        file.write_text(text, encoding="utf-8")
        if as_json:
            print_json(json_line({"file": str(file), "bytes": len(text.encode())}))
        else:
            output().print(f"The report is in {file}: open it in a browser.")
