"""One run of a study, in any process, from a row of parameters to a row of the study's table."""

import inspect
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import blake2b
from secrets import token_hex
from typing import TYPE_CHECKING, Any

from ray_messaging.cluster.run.agent import users_trace
from ray_messaging.cluster.run.local_run import Part, run_part
from ray_messaging.cluster.run.log_plan import LogPlan
from ray_messaging.cluster.run.result import Result
from ray_messaging.cluster.run.run_plan import Neighbours, RunOptions
from ray_messaging.config import Calls, Steps
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import Closed, ConfigError, ServerFailed, StepFailed, TransitError
from ray_messaging.model.collect import aggregates_of
from ray_messaging.model.exact import encode_exactly, encode_pairs_exactly
from ray_messaging.model.series_columns import STEP, is_text
from ray_messaging.model.series_columns import TAKEN as OF_SERIES
from ray_messaging.studies.by_name import bound, values_of
from ray_messaging.studies.design import KEY, REPLICATE, TAKEN, PlannedRun, plain_value
from ray_messaging.studies.run_tasks import (
    DIED,
    OF_THE_BEGINNING,
    OF_THE_ROW,
    BeginningRun,
    EndedRun,
    ForkedRun,
    RunTemplate,
    Task,
    spent,
)

if TYPE_CHECKING:
    import pyarrow as pa

_PLAIN = (bool, int, float, str, type(None))


class _ClusterFailed(Exception):
    """An error that says that a part of the cluster is gone, or cannot be reached."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def carry_out(
    template: RunTemplate,
    task: Task,
    server: LocalServer | None = None,
    neighbours: Callable[[], Neighbours] | None = None,
) -> EndedRun:
    """Carry out a task, which is a run or some of its steps, and return the result.

    An error of the model, or of another function that the user gave, is part of the result.

    Args: `server` is a server that no other run uses meanwhile. The run first deletes what an earlier run left on it.
    If `server` is None, the run starts a server of its own. `neighbours` returns the neighbours in the template's
    graph, which several runs share.
    """
    begun = time.perf_counter()
    planned = task if isinstance(task, PlannedRun) else task.planned
    try:
        graph = template.given["graph"]
        if neighbours is not None and graph is not None and not callable(graph) and not template.whole_cluster:
            template = replace(template, given={**template.given, "graph": neighbours()})
        (result, end), values = _result(template, task, server)
        if isinstance(task, BeginningRun):
            return EndedRun({}, None, time.perf_counter() - begun, calls=result.calls, end=end)
        if result.calls.spent:  # this is an error, because the outcomes would be those of fewer steps
            return EndedRun({}, None, time.perf_counter() - begun, _spent(template, result), calls=result.calls)
        digest = _digest(result)  # before the user's functions get the result, because they may change it
        outcomes = _last_aggregates(template, result)
        _add_outcomes(outcomes, template, result, values)
        _check_names(outcomes, result, planned)
        series = None if result.collected is None else _ipc(result.collected)
    except Exception as error:  # noqa: BLE001 - of the user's functions, of any kind
        said = f"{DIED}{_told(error.error)}" if isinstance(error, _ClusterFailed) else _told(error)
        return EndedRun({}, None, time.perf_counter() - begun, said)
    return EndedRun(outcomes, digest, time.perf_counter() - begun, None, series, result.calls)


def _result(template: RunTemplate, task: Task, server: LocalServer | None) -> tuple[Part, dict[str, Any]]:
    """Return the result of a task, and all values that functions may take by name in its run."""
    planned = task if isinstance(task, PlannedRun) else task.planned
    values = values_of(planned)
    first = values_of(task.before) if isinstance(task, ForkedRun) else values
    given = dict(template.given)
    for name, value in template.given.items():
        if name in OF_THE_ROW and callable(value):
            function = bound(value, template.values_of(name), first if name in OF_THE_BEGINNING else values)
            given[name] = function if template.values_of(name) else function()
    options = dict(template.options)
    calls, most = options.pop("calls", None), "max_steps" if callable(given["until"]) else "until"
    if isinstance(task, BeginningRun):
        given[most] = task.step
    elif isinstance(task, ForkedRun) and given[most] <= task.step:
        raise ConfigError(
            f"{most}={given[most]!r} must be above vary_from={task.step}, the step from which the row's values are used"
        )
    model, start = bound(template.model, 2, values), None if template.start is None else bound(template.start, 1, first)
    if template.whole_cluster:
        return Part(_over_groups(planned, model, calls, given | options | {"start": start})), values
    part = run_part(
        model,
        options=RunOptions(start, **options),
        seed=planned.seed,
        calls=calls,
        progress=False,
        beginning=task.beginning if isinstance(task, ForkedRun) else None,
        keep=isinstance(task, BeginningRun),
        server=server,
        log=None if template.logs is None else LogPlan(f"{template.logs}/{planned.key}", "reset", None),
        **given,
    )
    return part, values


def _over_groups(planned: PlannedRun, model: Any, calls: Calls | None, arguments: Mapping[str, Any]) -> Result:  # noqa: ANN401 - a function
    """Carry out a run by `Messaging.run`, in an experiment of its own, and return the result."""
    from ray.exceptions import RayActorError  # noqa: PLC0415 - brings Ray

    from ray_messaging.cluster.messaging import Messaging  # noqa: PLC0415 - brings Ray

    rules, given = arguments["rules"], {name: value for name, value in arguments.items() if name != "rules"}
    name = f"study-{planned.key}-{token_hex(4)}"  # the same row may be in several studies on one cluster
    steps = Steps(seed=planned.seed, digest=True)
    try:
        with Messaging.start(name, rules=rules, steps=steps, calls=calls) as messaging:
            result = messaging.run(model, progress=False, **given)
    except (Closed, RayActorError, ServerFailed, TransitError) as error:
        raise _ClusterFailed(error) from error
    if result.stopped and not result.calls.spent:  # Ctrl-C ended the run after a step, and is to end the study, too
        raise KeyboardInterrupt
    return result


def _check_names(outcomes: Mapping[str, Any], result: Result, planned: PlannedRun) -> None:
    collected = {*()} if result.collected is None else {*result.collected.column_names} - {*OF_SERIES}
    for what, names, taken in (("outcome", outcomes, TAKEN), ("collected value", sorted(collected), (KEY, REPLICATE))):
        for name in names:
            if name in taken or name in planned.row:
                raise ConfigError(f"the {what} {name!r} has the name of another column of the study: rename it")


def _add_outcomes(found: dict[str, Any], template: RunTemplate, result: Result, values: Mapping[str, Any]) -> None:
    for name, function in template.outcomes:
        value = bound(function, 1, values)(result)
        if inspect.isawaitable(value):
            raise ConfigError(f"the outcome {name or function!r} must be a plain function, not an async one")
        if not name and not isinstance(value, Mapping):
            raise ConfigError(f"outcomes= returned {value!r:.100}: it must return a dict, such as {{'knows': 12}}")
        for key, each in value.items() if not name else [(name, value)]:
            plain = plain_value(each)
            if not (isinstance(key, str) and is_text(key)):
                raise ConfigError(f"the name of an outcome is {key!r:.100}: it must be a str of valid Unicode")
            if not isinstance(plain, _PLAIN) or (isinstance(plain, str) and not is_text(plain)):
                raise ConfigError(
                    f"the outcome {key!r} is {each!r:.100}: it must be a number, a bool, a str of valid Unicode or None"
                )
            # The type may be one that other processes do not know, such as the class of an enum.
            if type(plain) not in _PLAIN:
                plain = json.loads(json.dumps(plain))
            if key in found:
                raise ConfigError(f"two outcomes have the name {key!r}: rename one")
            found[key] = plain


def _last_aggregates(template: RunTemplate, result: Result) -> dict[str, Any]:
    """Return, by column, the aggregates of the last step, or {} if the run collected none."""
    if not aggregates_of(template.options.get("collect")) or not len(result.collected):
        return {}
    (last,) = result.collected.slice(len(result.collected) - 1).to_pylist()
    if (at := last.pop(STEP)) != result.steps - 1:
        raise ConfigError(
            f"the outcome of an aggregate is its value in the last step, {result.steps - 1}, but values were collected "
            f"last in step {at}: choose a collect_every= by which {result.steps - 1} can be divided"
        )
    return dict(last)


def _digest(result: Result) -> str:
    """Return a digest of a run: of the number of its steps, its last messages, and all final states."""
    head = encode_exactly([result.steps, [*result.digests.items()], None], "the digests")
    # The last byte of `head` is an encoded None, in whose place the states are put.
    whole = head[:-1] + encode_pairs_exactly(result.states, "the states")
    return blake2b(whole, digest_size=16).hexdigest()


def _ipc(table: "pa.Table") -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - 80 MB that a run without series need not load

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return bytes(sink.getvalue())


def _spent(template: RunTemplate, result: Result) -> str:
    return (
        f"{spent(template.options['calls'].budget)} in step {result.steps}, so the run has no outcomes. Call "
        "batch_run again with a higher budget= in calls= to carry out the run; with store= no answer is paid twice"
    )


def _told(error: Exception) -> str:
    """Return an error's text with the place in the user's code. The text of a StepFailed has this place already."""
    try:
        text = str(error)
    except Exception as other:  # noqa: BLE001 - of the user's own class, of any kind
        text = f"its text is unknown, because str() of it raised {type(other).__name__}"
    place = "" if isinstance(error, StepFailed) else users_trace(error)[1]
    return f"{type(error).__name__}: {text}{place}".encode(errors="backslashreplace").decode()
