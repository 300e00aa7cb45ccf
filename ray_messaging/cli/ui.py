"""The command `ray-messaging ui`."""

import sys
import threading
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.json import encode

from ray_messaging.cli.log_options import open_run
from ray_messaging.cli.rule_specs import KNOWN, parse_rule
from ray_messaging.cli.session import join_experiment, output, print_json
from ray_messaging.errors import ConfigError

if TYPE_CHECKING:
    from ray_messaging.cluster.messaging import Messaging
    from ray_messaging.inspector.sources.log_rows import RunFacts
    from ray_messaging.inspector.web.serve import Bound

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="EXP_ID|FOLDER", help="A running experiment, the log_dir of a run, or the folder of a study."
    ),
]
OfModel = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODULE:FUNCTION",
        help="A function that returns the arguments of `run` as a dict: run it here, with its parameters as sliders.",
    ),
]
Beside = Annotated[
    str | None,
    typer.Option(
        "--beside", metavar="LOG_DIR", help="The log_dir of another run, such as a fork, to compare with LOG_DIR."
    ),
]
Host = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help=("The address to listen on; any but loopback requires a token.")),
]
Port = Annotated[int, typer.Option("--port", metavar="N", help="0: a free one.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help=("A host name by which browsers may open the page, such as a proxy's; repeatable."),
    ),
]
Token = Annotated[
    bool, typer.Option("--token", help=("Require a token on loopback, too, because others may use this machine."))
]
Steer = Annotated[
    bool,
    typer.Option(
        "--control", help="Let the page steer: steps, rules, dead letters, messages of the user. Requires a token."
    ),
]
Seats = Annotated[
    bool,
    typer.Option("--seats", help="Serve the pages of people at seats, not the inspector, and print their links."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the URL as JSON, in one object.")]
# `messaging.ui` passes this option. It makes the command end when the command's standard input is closed.
OfProcess = Annotated[bool, typer.Option("--of-process", hidden=True)]


def ui(
    target: Target = None,
    model: OfModel = None,
    beside: Beside = None,
    host: Host = "127.0.0.1",
    port: Port = 8266,
    allow_host: AllowHost = None,
    token: Token = False,
    control: Steer = False,
    seats: Seats = False,
    as_json: Json = False,
    of_process: OfProcess = False,
) -> None:
    """Show a run in the browser: flow between groups, rates, steps, conversations, rules, health. Or show a study.

    The command ends with Ctrl-C.
    """
    check_extra()
    # These modules import Ray and pyarrow, which takes a second, and which `ui --help` does not need.
    from ray_messaging.cluster.messaging import Messaging  # noqa: PLC0415
    from ray_messaging.inspector.sources.live import LiveSource  # noqa: PLC0415
    from ray_messaging.inspector.sources.live_control import LiveControl  # noqa: PLC0415
    from ray_messaging.inspector.web.serve import Place, bind, serve  # noqa: PLC0415

    if seats and (target is None or model is not None or beside is not None or control or token):
        raise ConfigError(
            "--seats shows pages on which people answer for agents of a running experiment: name the experiment, and "
            "leave out --model, --beside, --control and --token"
        )
    bound = bind(Place(host, port, tuple(allow_host or ())), token=token or control)
    until = _stdin_closed() if of_process else None
    if seats:
        assert target is not None
        _serve_seats(target, bound, until, as_json=as_json)
        return
    with bound.socket:
        found = _opened(target, model, beside, of_process=of_process)
        if beside is not None and isinstance(found, Messaging):
            raise ConfigError(
                f"--beside compares two folders of logs, but {target!r} is a running experiment: name its log_dir "
                "instead"
            )
        if control and not isinstance(found, Messaging):
            raise ConfigError(
                f"--control steers a running experiment, but {target!r} is the folder of a log or study: leave out "
                "--control"
            )
        source = LiveSource(found) if isinstance(found, Messaging) else found
        examples = [known.example for known in KNOWN.values()]
        steering = LiveControl(found, parse_rule, examples) if control and isinstance(found, Messaging) else None
        from ray_messaging.inspector.web.answer_cache import AnswerCache  # noqa: PLC0415
        from ray_messaging.inspector.web.application import application  # noqa: PLC0415 - needs the extra `ui`

        app = application(AnswerCache(source, steering))
        serve(app, bound, on_ready=lambda: _tell(source, bound, as_json=as_json), until=until)


def _opened(target: str | None, model: str | None, beside: str | None, *, of_process: bool) -> "RunFacts | Messaging":
    if (target is None) is (model is None):
        raise ConfigError(
            "name what to show, and only one of these: an experiment, a folder, or a model (--model town:town)"
        )
    if target is None:
        assert model is not None
        if beside is not None:
            raise ConfigError("--beside compares two folders of logs, and --model runs a model: leave out one of them")
        from ray_messaging.cli.fork_command import imported_function  # noqa: PLC0415 - they take a second
        from ray_messaging.inspector.sources.model_facts import ModelFacts  # noqa: PLC0415

        return ModelFacts(imported_function(model), model)
    return (
        join_experiment(target, "start it first")
        if of_process
        else open_run(target, partial(_open_folder, beside=beside))
    )


def _open_folder(folder: str, beside: str | None) -> "RunFacts":
    """Return what the inspector's pages show: the runs of a study's folder, or the run of a log's folder."""
    from ray_messaging.inspector.sources.folder_facts import FolderFacts  # noqa: PLC0415
    from ray_messaging.studies.study_folder import StudyFolder  # noqa: PLC0415

    if not StudyFolder(folder).is_study():
        return FolderFacts(folder, beside=beside)
    if beside is not None:
        raise ConfigError(
            f"--beside compares two folders of logs, but {folder!r} is the folder of a study: leave out --beside"
        )
    from ray_messaging.inspector.sources.study_facts import StudyFacts  # noqa: PLC0415 - it takes a second

    return StudyFacts(folder)


def _serve_seats(exp_id: str, bound: "Bound", until: threading.Event | None, *, as_json: bool) -> None:
    """Serve the pages on which people play agents of an experiment. Each page has a token of its own."""
    from ray_messaging.cluster.handles.connection import result  # noqa: PLC0415 - brings Ray
    from ray_messaging.cluster.handles.seat import seat_url  # noqa: PLC0415 - brings Ray
    from ray_messaging.inspector.web.seat_pages import seat_pages  # noqa: PLC0415 - needs the extra `ui`
    from ray_messaging.inspector.web.serve import serve  # noqa: PLC0415 - needs the extra `ui`

    pages, public = bound.url.partition("?")[0], bound._replace(access=replace(bound.access, token=None))
    with bound.socket:
        interceptor = join_experiment(exp_id, "start it first").interceptor
        tokens = result(interceptor.seat_tokens.remote(), actor_name="the interceptor")

        def tell() -> None:
            if as_json:
                print_json(encode({"url": pages}))
            else:
                for agent, token in tokens.items():
                    output().print(f"The seat of agent {agent!r} is at {seat_url(pages, agent, token)}")
                output().print(f"{len(tokens):,} seats (Ctrl-C ends their pages)")
            sys.stdout.flush()

        serve(seat_pages(interceptor), public, on_ready=tell, until=until)


def check_extra() -> None:
    """Raise ConfigError if the extra `ui` is not installed."""
    if find_spec("nicegui") is None:
        raise ConfigError("the inspector needs NiceGUI: pip install 'ray-messaging[ui]'")


def _tell(source: "RunFacts", bound: "Bound", *, as_json: bool) -> None:
    if as_json:
        print_json(encode({"url": bound.url}))
    else:
        output().print(f"The inspector of {source.title} is at {bound.url} (Ctrl-C ends it)")
    sys.stdout.flush()


def _stdin_closed() -> threading.Event:
    """Return an event that is set when stdin is closed: then the process that started this one has ended."""
    closed = threading.Event()

    def wait() -> None:
        sys.stdin.buffer.read()
        closed.set()

    threading.Thread(target=wait, daemon=True).start()
    return closed
