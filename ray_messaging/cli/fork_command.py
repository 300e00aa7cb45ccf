"""The command `fork`, which begins another run in the middle of a run, under other rules or with another model."""

import importlib
import sys
from collections.abc import Callable
from typing import Annotated, Any, cast

import typer
from ray import cloudpickle

from ray_messaging.cli.options import Rules
from ray_messaging.cli.rule_specs import parse_rules
from ray_messaging.cli.session import output
from ray_messaging.errors import ConfigError

Model = Annotated[
    str, typer.Option("--model", metavar="MODULE:FUNCTION", help=("The model as MODULE:FUNCTION, such as town:person."))
]


def fork(
    parent: Annotated[str, typer.Argument(metavar="PARENT", help="The log's folder of a run with checkpoints.")],
    folder: Annotated[
        str, typer.Argument(metavar="FOLDER", help=("The new run's folder; the run gets the folder's name."))
    ],
    model: Model,
    until: Annotated[int, typer.Option(help="The run ends before this step.")],
    at_step: Annotated[
        int | None, typer.Option(help="The first step that may differ; default: the step after the last one.")
    ] = None,
    rules: Rules = None,
    by: Annotated[str, typer.Option(help="agent or group, as in messaging.run.")] = "agent",
) -> None:
    """Begin a new run from a checkpoint of the run PARENT, and say where the two runs differ.

    The new run has the agents and groups of PARENT. If the model needs a graph, shared objects or a start function,
    fork the run in Python.
    """
    from ray_messaging import Messaging, compare  # noqa: PLC0415 - they take a second

    function = imported_function(model)
    # The function is pickled with its code, so the groups' processes need not find its file.
    cloudpickle.register_pickle_by_value(sys.modules[model.partition(":")[0]])
    given = None if rules is None else parse_rules(rules)
    console = output()
    name = folder.rstrip("/").rpartition("/")[2]
    with Messaging.fork(parent, name, at_step=at_step, log_dir=folder, rules=given) as messaging:
        console.print(f"The fork of {parent} begins with step {messaging.steps.now}.")
        groups = {name: [*agents] for name, agents in messaging.steps.hosted().items()}
        everybody = [agent for agents in groups.values() for agent in agents]
        result = messaging.run(function, agents=everybody, groups=groups, until=until, by=cast("Any", by))
    console.print(repr(result))
    console.print(str(compare(folder, parent)))


def imported_function(named: str) -> Callable[..., Any]:
    """Import a user's function, named as MODULE:FUNCTION; raise ConfigError if this fails, or if it is no function."""
    module, _, name = named.partition(":")
    sys.path.insert(0, "")  # so that models in the present folder can be imported, as by `python -m`
    try:
        imported = importlib.import_module(module)
        found = getattr(imported, name) if name else imported
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"--model {named!r} cannot be imported ({error}): write MODULE:FUNCTION, such as town:person"
        ) from error
    if not callable(found):
        raise ConfigError(
            f"--model {named!r} is a {type(found).__name__}, not a function: write MODULE:FUNCTION, such as town:person"
        )
    return cast("Callable[..., Any]", found)
