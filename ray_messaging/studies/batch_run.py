"""`batch_run`, which makes many runs of one model, by parameters and replicates, on all cores or on a Ray cluster."""

import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray_messaging.errors import ConfigError
from ray_messaging.studies.design import design_of
from ray_messaging.studies.run_workers import early_workers, packed, workers_for

if TYPE_CHECKING:
    from ray_messaging.config import Calls
    from ray_messaging.studies.study import Study

# A function of the result, an aggregate, a dict of functions by name, or a list of any of these.
Outcomes = Any


def batch_run(
    model: Callable[..., object] | Mapping[str, Callable[..., object]],
    parameters: Any = None,  # noqa: ANN401 - a dict of lists, a list of dicts or a DataFrame
    *,
    agents: Any,  # noqa: ANN401 - as in `run`, or a function
    until: int | Callable[..., int | bool],
    max_steps: int | Callable[..., int] | None = None,
    replicates: int = 1,
    seed: int = 0,
    folder: str | Path | None = None,
    outcomes: Outcomes = None,
    start: Callable[..., dict[str, Any]] | Mapping[str, Callable[..., dict[str, Any]]] | None = None,
    graph: Any = None,  # noqa: ANN401 - likewise
    shared: Any = None,  # noqa: ANN401 - likewise
    rules: Any = (),  # noqa: ANN401 - likewise
    groups: Any = None,  # noqa: ANN401 - likewise
    by: str = "agent",
    concurrency: int = 100,
    timeout: float | None = None,
    collect: Any = None,  # noqa: ANN401 - as in `run`
    collect_every: int = 1,
    only_active: bool = False,
    calls: "Calls | None" = None,
    vary_from: int | None = None,
    before: Mapping[str, Any] | None = None,
    logs: bool = False,
    whole_cluster: bool = False,
    workers: int | None = None,
    on_existing: str = "resume",
    progress: bool = True,
) -> "Study":
    """Run a model for each combination of parameters and each replicate, and return the study: one row per run.

    Each run is a call of `ray_messaging.run` in a process with one core. If this process uses Ray, or RAY_ADDRESS names
    a cluster, the processes are Ray tasks. Otherwise they are processes of this machine. The result of a run does not
    depend on the machine or process. Runs that have ended are written to the folder. If the program dies, the same call
    in a new program goes on with the remaining runs. If a worker dies, its run is made again. If a run raises an
    exception, its row has the error, and the other runs go on.

    The model gets parameters by name, such as `def person(me, inbox, *, chance)`, and so do all functions that are
    passed here. They may also take the run's `seed` and `replicate`, and `row`, the dict of all parameters.

    Args:
        model: The model, as for `run`, which may take parameters by name.
        parameters: The rows of parameters: a dict that has a list of values for each parameter, so that each
            combination of values is a row; a list of dicts; or a
            DataFrame.
        agents: As for `run`, or a function of parameters that returns it.
        until: The first step that is not run, or a function of parameters that returns it. With `max_steps`, a
            condition as for `run`. The condition may take parameters by name after the collected values, such as
            `lambda now, goal: now["mood"] > goal`.
        max_steps: If `until` is a condition: the first step that is not run even if the condition is never met, or a
            function of parameters that returns it.
        replicates: The number of runs of each row, each with a seed of its own. All rows have the same seeds.
        seed: The number from which the seeds of all runs are derived.
        folder: The folder of the study, a path or a URI. None: a temporary folder, which is removed when the process
            ends.
        outcomes: The measures of each run: a dict of functions by name, each of which gets the run's `Result`; a
            function that returns a dict; an aggregate, such as `Mean("mood")`, of the last step; or a list of these.
            The aggregates of `collect` are always outcomes.
        start: As for `run`; it may take parameters by name.
        graph: As for `run`, or a function of parameters that returns it. If the function takes `seed`, each replicate
            has a graph of its own.
        shared: As for `run`, or a function of parameters.
        rules: The rules, as for `run`, or a function of parameters that returns them.
        groups: As for `run`, or a function of parameters.
        by: As for `run`.
        concurrency: As for `run`.
        timeout: As for `run`.
        collect: As for `run`; `study.series` has the collected values of all runs.
        collect_every: As for `run`.
        only_active: As for `run`.
        calls: As for `run`. The limits apply to each run separately. With a store, equal calls are made only once in
            all studies that use the same store.
        vary_from: The step from which on the parameters in `before` have the values of the rows. The steps before it
            are run once for all rows that are otherwise equal, and each row goes on from there. This cannot be combined
            with a budget of calls.
        before: The values of these parameters in the steps before `vary_from`, such as {"limit": "none"}.
        logs: Each run keeps its event log in the study's folder: `study.log` opens it, and `study.effects` names the
            first message in which two runs differ. The runs are then processes of this machine. This cannot be combined
            with `vary_from`.
        whole_cluster: Each run is a `messaging.run` with groups on the whole Ray cluster, and one run is carried out
            after the other. Use this for runs that need several processes or machines. `groups` is as for
            `Messaging.run`. The results are the same as without `whole_cluster`. This cannot be combined with `logs`,
            `vary_from` or `workers`.
        workers: The number of runs at the same time; None: one for each core.
        on_existing: "resume" goes on with the study in the folder; "reset" begins anew.
        progress: Show how many runs have ended, and how much time is left.

    Raises: ConfigError for invalid arguments, for a parameter that no function takes, and if the folder has a study of
    another model, or with other arguments or rows; LogError if the folder cannot be used.
    """
    if on_existing not in ("resume", "reset"):
        raise ConfigError(f"on_existing={on_existing!r} is unknown: write 'resume' or 'reset'")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers={workers!r} must be the number of runs at the same time, at least 1")
    design = design_of([{}] if parameters is None else parameters, replicates, seed)
    # A folder that exists may have all runs.
    new = (folder is None or not Path(folder).exists()) and not whole_cluster
    with early_workers(len(design), workers, here=logs) if new else nullcontext() as early:
        # The workers begin before these imports, which take as long as theirs.
        from ray_messaging.studies.run_tasks import RunTemplate  # noqa: PLC0415
        from ray_messaging.studies.study import Study  # noqa: PLC0415
        from ray_messaging.studies.study_arguments import (  # noqa: PLC0415
            check_arguments,
            check_same,
            check_together,
            collect_of,
            listed,
            outcomes_of,
            record_of,
            rules_of,
            shared_steps_of,
        )
        from ray_messaging.studies.study_driver import carry_out_all  # noqa: PLC0415
        from ray_messaging.studies.study_folder import LOGS, StudyFolder  # noqa: PLC0415

        functions, aggregates = outcomes_of(outcomes)
        template = RunTemplate(
            model=model,
            whole_cluster=whole_cluster,
            given={
                "agents": listed(agents), "until": until, "max_steps": max_steps, "graph": listed(graph),
                "shared": shared, "rules": rules if callable(rules) else rules_of(rules), "groups": groups,
            },
            outcomes=functions,
            start=start,
            options={
                "by": by, "concurrency": concurrency, "timeout": timeout, "collect": collect_of(collect, aggregates),
                "collect_every": collect_every, "only_active": only_active, "calls": calls,
            },
        )  # fmt: skip
        check_arguments(template, design)
        shared_steps = shared_steps_of(template, design, vary_from, before)
        if calls is not None:
            from ray_messaging.cluster.run.run_actor import store_of  # noqa: PLC0415 - imports what only workers need
            from ray_messaging.config import check_calls  # noqa: PLC0415 - brings pydantic, a third of our imports

            check_calls(calls)
            store_of(calls)  # if the store cannot be used, this raises the error before a worker begins
        check_together({"whole_cluster": whole_cluster, "logs": logs, "vary_from": vary_from, "workers": workers})
        owner = tempfile.TemporaryDirectory(prefix="study-") if folder is None else None
        files = StudyFolder(owner.name if owner is not None else folder or "")
        if logs:
            template = replace(template, logs=str(Path(files.folder.path, LOGS).absolute()))
        packed_template = packed(template)
        record = record_of(template, design, seed, functions) | {"planned": len(design)}
        if logs:
            record["options"] |= {"logs": True}
        if shared_steps is not None:
            record["options"] |= {"vary_from": shared_steps.step, "before": shared_steps.row}
        with files.alone():
            if on_existing == "reset":
                files.erase()
            check_same(files, record, design, "" if calls is None else calls.currency)
            files.note(record)
            made = partial(workers_for, packed_template, here=logs, whole_cluster=whole_cluster, early=early)
            carry_out_all(files, record, design, made, workers, shared_steps, progress=progress)
    study = Study(files.where)
    study._owner = owner
    if failed := sum(run.error is not None for run in study._runs):
        first = next(run for run in study._runs if run.error is not None)
        sys.stderr.write(f"{failed:,} of {len(design):,} runs failed; the first error: {first.error}\n")
    return study
<<<<<<< HEAD
=======


class _SharedSteps(NamedTuple):
    """The steps before `step`, in which the parameters in `row` have the same values in all runs."""

    step: int
    row: Row

    def before(self, planned: PlannedRun) -> PlannedRun:
        row = planned.row | self.row
        return planned._replace(key=key_of(row, planned.replicate), row=row)


def _rules(rules: Any) -> list[Any]:  # noqa: ANN401 - as the user has written it
    try:
        return [*rules]
    except TypeError:
        raise ConfigError(
            f"rules={short_repr(rules)} must be a list of rules, or a function of parameters that returns such a "
            "list. For no rules, leave rules= out"
        ) from None


def _shared_steps(template: RunTemplate, design: Sequence[PlannedRun], step: Any, before: Any) -> _SharedSteps | None:  # noqa: ANN401 - as the user has written it
    """Return the steps that runs share, or None.

    Raises: ConfigError for arguments that do not allow shared steps, such as a parameter that cannot change during a
    run.
    """
    if step is None and before is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ConfigError(
            f"vary_from={step!r} must be the step, at least 1, from which on the parameters in before= vary"
        )
    if not isinstance(before, Mapping) or not before:
        raise ConfigError(
            f"before={short_repr(before)} must be a dict of parameters, with the values that they have before step "
            f"{step}, such as {{'limit': 'none'}}"
        )
    later = {name: each for name, each in template.functions().items() if name not in (*OF_THE_BEGINNING, "start")}
    row = dict(before)
    for name, value in before.items():
        if name not in design[0].row:
            raise ConfigError(
                f"before= has {name!r}, which is not a parameter: parameters= has {', '.join(map(repr, design[0].row))}"
            )
        wanted = [wanted_by(function, positional) for function, positional in later.values()]
        if not any(each.any_name or {name, ROW} & each.names for each in wanted):
            raise ConfigError(
                f"the parameter {name!r} in before= cannot vary from step {step} on, because only start=, agents= or "
                "groups= take it, and they are used only at the beginning of a run"
            )
        row[name] = parameter_value(value, f"before= has {name}=")
    calls = template.options["calls"]
    if isinstance(calls, Calls) and calls.budget is not None:
        raise ConfigError(
            f"calls= has budget={calls.budget}, which counts the calls of each run, but with vary_from={step} several "
            "runs share calls: leave one of the two out"
        )
    for name in ("until", "max_steps"):
        most = template.given[name]
        if isinstance(most, int) and most <= step:
            raise ConfigError(f"{name}={most} must be above vary_from={step}, because each row's own steps begin there")
    return _SharedSteps(step, row)


def _outcomes(outcomes: Any) -> tuple[list[tuple[str, Callable[..., Any]]], list[Aggregate]]:  # noqa: ANN401 - as the user has written it
    """Return the functions in `outcomes`, and the aggregates in `outcomes`.

    The functions are returned with their names. A function that returns a dict has the name "".
    """
    functions: list[tuple[str, Callable[..., Any]]] = []
    aggregates: list[Aggregate] = []
    for each in outcomes if isinstance(outcomes, list | tuple) else [] if outcomes is None else [outcomes]:
        if isinstance(each, Mapping):
            for name, function in each.items():
                if not isinstance(name, str) or not callable(function):
                    raise ConfigError(
                        f"outcomes= has {name!r}: {short_repr(function)}: write a name, and a function of the result, "
                        "as {'steps': lambda result: result.steps}"
                    )
                functions.append((name, function))
        elif isinstance(each, Aggregate) or (isinstance(each, Of) and aggregates_of(each)):
            aggregates += aggregates_of(each)
        elif callable(each):
            functions.append(("", each))
        else:
            raise ConfigError(
                f"outcomes= has {short_repr(each)}: write functions of the result by name, as {{'steps': "
                "lambda result: result.steps}, a function that returns a dict, or an aggregate, as Mean('mood')"
            )
    twice = [name for name, count in Counter(name for name, _ in functions if name).items() if count > 1]
    if twice:
        raise ConfigError(f"two outcomes have the name {twice[0]!r}: rename one")
    return functions, aggregates


def _collect(collect: Any, aggregates: Sequence[Aggregate]) -> Any:  # noqa: ANN401 - as the user has written it
    if not aggregates:
        return collect
    if collect is not None and not aggregates_of(collect):
        raise ConfigError(
            f"outcomes= has {aggregates[0]!r}, and collect= is a function: a run collects either aggregates or values "
            "of each agent. Compute this outcome of the result, as lambda result: result.to_pandas()['mood'].mean()"
        )
    return [*aggregates_of(collect), *aggregates]


def _check_together(given: Mapping[str, object]) -> None:
    """Raise ConfigError for two arguments that exclude each other."""
    used = [name for name, value in given.items() if value is not None and value is not False]
    if used[:2] == ["logs", "vary_from"]:
        raise ConfigError(
            "logs=True keeps whole runs, but with vary_from= several runs share steps: leave one of the two out"
        )
    if used[:1] == ["whole_cluster"] and len(used) > 1:
        raise ConfigError(
            f"whole_cluster=True makes one run after the other, and cannot be combined with {used[1]}=: leave one of "
            "the two out"
        )


def _listed(value: Any) -> Any:  # noqa: ANN401 - as the user has written it
    return [*value] if isinstance(value, Iterator) else value


def _check(template: RunTemplate, design: Sequence[PlannedRun]) -> None:
    """Raise ConfigError for arguments that would be invalid in every run."""
    options = template.options
    functions = {name for name, _ in template.outcomes}
    for each in aggregates_of(options["collect"]):
        if each.name in functions and not isinstance(each, Count):
            raise ConfigError(f"two outcomes have the name {each.name!r}: rename one")
    if not callable(template.model) and not isinstance(template.model, Mapping):
        check_run(template.model, RunOptions(None, "agent", 1, None))
    _check_names(template, design[0].row)
    values = values_of(design[0])
    start = None if template.start is None else bound(template.start, 1, values)
    check_run(bound(template.model, 2, values), RunOptions(start, *(options[name] for name in RunOptions._fields[1:])))


def _check_names(template: RunTemplate, row: Row) -> None:
    until, most = template.given["until"], template.given["max_steps"]
    if most is None and callable(until):
        for name in sorted(wanted_by(until, 0).needed - {*row, *GIVEN}):
            raise ConfigError(
                f"until= takes {name!r}, which is not a parameter of the study: for a condition on the collected "
                "values also pass max_steps=, the number of steps after which a run ends in any case"
            )
    check_names(template.functions(), row)
    if most is not None and not callable(most):
        condition = bound(until, 1, row | dict.fromkeys(GIVEN)) if callable(until) else until
        ending_of(condition, most, RunOptions(None, "agent", 1, None, template.options["collect"]))


def _record(
    template: RunTemplate, design: Sequence[PlannedRun], seed: int, functions: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """Return the record of a study: its model, parameters and options, and digests of other arguments.

    A later call compares its own record with this one, to check whether the folder has the same study.
    """
    functions_of = {what: function for what, (function, _) in template.functions().items()}
    sources = {what: source_of(function) for what, function in functions_of.items()}
    given = {name: value for name, value in template.given.items() if name not in sources}
    rules = given.pop("rules", None)
    # If an argument was not given, its digest is "". If it was given, but has no digest, None is stored.
    inputs = {name: "" if value is None else content_digest(value) for name, value in given.items()}
    values = {what: values_used(each) for what, each in functions_of.items()}
    if rules is not None:
        inputs["rules"] = content_digest([(name_of(rule), vars(rule)) for rule in rules])
        values["rules"] = _told_rules(rules)
    collect = template.options["collect"]
    if (function := function_of(collect)[0]) is not None:
        sources["collect"] = source_of(function)
        values["collect"] = values_used(function)
    options = {
        name: value for name, value in template.options.items() if name not in ("collect", "concurrency", "calls")
    }
    return {
        "model": name_of(template.model),
        "seed": int(seed),
        "parameters": [*design[0].row],
        "outcomes": [name for name, _ in functions if name],
        "counts": [each.name for each in aggregates_of(collect) if isinstance(each, Count)],
        "options": options | {"collect": [*map(_told, aggregates_of(collect)), *_rows_of(collect)]},
        "sources": sources,
        "values": values,
        "inputs": inputs,
    }


def _told_rules(rules: Sequence[Any]) -> dict[str, str | None]:
    """Return digests of rules, and of the sources of the user's own rules, by name."""
    if not rules:
        return {}
    from ray_messaging.cluster.run.beginning import told_rules  # noqa: PLC0415 - a study without rules need not load it

    found = {f"the rule {name!r}": digest for name, digest in told_rules(rules).items()}
    own = [type(rule) for rule in rules if not type(rule).__module__.startswith("ray_messaging.")]
    return found | {f"the source of {name_of(kind)}": source_of(kind) for kind in own}


def _told(aggregate: Aggregate) -> str:
    of = source_of(aggregate.of) if callable(aggregate.of) else repr(aggregate.of)
    among = "" if aggregate.among is None else f", among={[*aggregate.among]}"
    return f"{aggregate!r}, of={of}, living={aggregate.living}{among}"


def _rows_of(collect: object) -> list[str]:
    """Return which agents the functions in `collect` measure, for the record; [] if they measure all agents."""
    among = function_of(collect)[1]
    return [] if among is None else [repr([*among])]


def _check_same(files: StudyFolder, record: Mapping[str, Any], design: Sequence[PlannedRun], currency: str) -> None:
    """Raise ConfigError if the folder has a study that differs from this one, or whose costs have another currency."""
    if (before := files.record()) is None:
        return
    advice = "pass another folder, or begin anew by on_existing='reset'"
    for name in ("model", "seed", "parameters", "outcomes", "options"):
        if (now := record[name]) != (then := before.get(name)):
            raise ConfigError(
                f"the folder {files.where!r} has another study: its {name} is {then!r}, and here {now!r}; {advice}"
            )
    for name in record["sources"].keys() | before["sources"].keys():
        if record["sources"].get(name) != before["sources"].get(name):
            raise ConfigError(
                f"the source of {name}= has changed since the study in {files.where!r} began ({record['model']}), so "
                f"its runs so far were made with other code. {advice[0].upper()}{advice[1:]}"
            )
    for name in record["inputs"].keys() | before["inputs"].keys():
        now, then = record["inputs"].get(name), before["inputs"].get(name)
        if now != then and None not in (now, then):
            raise ConfigError(f"{name}= differs from that of the study in {files.where!r}: {advice}")
    _check_values(files, record, before, advice)
    planned, there = {run.key for run in design}, [*files.runs(before).values()]
    _check_currency(files, there, currency)
    others = [run for run in there if run.key not in planned]
    if others:
        raise ConfigError(
            f"the folder {files.where!r} has {len(others):,} runs that are not in this design, such as replicate "
            f"{others[0].replicate} of {others[0].row}: a study may get more runs, but not fewer; {advice}"
        )


def _check_values(files: StudyFolder, record: Mapping[str, Any], before: Mapping[str, Any], advice: str) -> None:
    """Raise ConfigError if a value that a function uses, such as an argument of a partial, has changed."""
    known = before.get("values", {})  # version 1.0.0 recorded no values
    for name in record["values"].keys() & known.keys():
        if changed := changed_values(record["values"][name], known[name]):
            raise ConfigError(
                f"{changed[0]}, which {name}= uses, differs from that of the study in {files.where!r}, so its runs so "
                f"far were made with another value: {advice}"
            )


def _check_currency(files: StudyFolder, there: Sequence[StoredRun], currency: str) -> None:
    """Raise ConfigError if runs of the study have costs in another currency than `currency`, unless this is ""."""
    for run in there if currency else ():
        if run.calls.currency not in ("", currency):
            raise ConfigError(
                f"the prices in calls= are in {currency}, but those of the study in {files.where!r} are in "
                f"{run.calls.currency}, and a study has the sum of all costs: pass prices in {run.calls.currency}, or "
                "another folder"
            )


def _carry_out(
    files: StudyFolder,
    record: Mapping[str, Any],
    design: Sequence[PlannedRun],
    made: "Callable[..., ProcessWorkers | RayWorkers | WholeCluster]",
    workers: int | None,
    shared_steps: _SharedSteps | None,
    *,
    progress: bool,
) -> None:
    """Make the runs that have no result yet, and write all runs to the study's final files.

    Args: `made` makes the workers. `workers` is the number of runs at a time (None: one for each core). With
    `progress`, the progress is shown.
    """
    there = files.runs(record)
    left = [run for run in design if run.key not in there or there[run.key].is_to_be_repeated]
    if left:
        ended = _EndedRuns(files)
        try:
            shown = StudyProgress(len(design), len(left), shown=progress)
            count = min(len(left), workers) if workers else None
            _drive(ended, _Tasks(left, shared_steps), made(count=count), shown)
        finally:  # runs that have ended are also written after Ctrl-C
            ended.flush()
        there = files.runs(record)
    files.finish([there[run.key] for run in design])


class _Tasks:
    """The tasks of a study that wait for a worker.

    A task is a whole run, or the first steps that runs share, or later steps.

    First steps that runs share are called a beginning, and the later steps of a run are called its rest. The rests of
    one beginning come before the next beginning, so that only few beginnings are in memory.
    """

    def __init__(self, left: Sequence[PlannedRun], shared_steps: _SharedSteps | None) -> None:
        self._shared = shared_steps
        self._waiting: list[Task] = [*reversed(left)]
        self._runs: dict[str, list[PlannedRun]] = {}  # the runs that go on from each beginning, under its key
        # The numbers of calls of each beginning, under its key. They are added to the calls of the first run that goes
        # on from it.
        self._calls: dict[str, CallCounts] = {}
        if shared_steps is not None:
            self._waiting = []
            for planned in left:
                before = shared_steps.before(planned)
                if before.key not in self._runs:
                    self._waiting.insert(0, BeginningRun(before, shared_steps.step))
                self._runs.setdefault(before.key, []).append(planned)

    def __len__(self) -> int:
        return len(self._waiting)

    def pop(self) -> Task:
        """Return the next task."""
        return self._waiting.pop()

    def again(self, task: Task) -> None:
        """Add a task again, because its worker has died."""
        self._waiting.append(task)

    def ended(self, task: Task, ended: EndedRun) -> Iterator[tuple[PlannedRun, EndedRun]]:
        """Yield the runs that have ended because a task has ended.

        If a beginning failed, all runs that would go on from it have ended.
        """
        if isinstance(task, PlannedRun):
            yield task, ended
        elif isinstance(task, ForkedRun):
            first = self._calls.pop(task.before.key, CallCounts())
            yield task.planned, ended._replace(calls=CallCounts.together([first, ended.calls]))
        else:
            runs = self._runs.pop(task.planned.key)
            if ended.end is None:
                yield from ((planned, ended) for planned in runs)
                return
            self._calls[task.planned.key] = ended.calls
            self._waiting += [ForkedRun(each, task.planned, task.step, ended.end) for each in reversed(runs)]


def _drive(
    ended: "_EndedRuns", tasks: _Tasks, made: "ProcessWorkers | RayWorkers | WholeCluster", shown: "StudyProgress"
) -> None:
    deaths = Counter[str]()
    running = 0
    with made as workers, shown:
        while True:
            while tasks and workers.free:
                workers.start(tasks.pop())
                running += 1
            # All workers have runs again, and do not wait for the files.
            ended.flush_if_due()
            shown.show_if_due()
            if not running:
                return
            for task, answer in workers.wait(_LOOK_S):
                running -= 1
                planned = task if isinstance(task, PlannedRun) else task.planned
                if answer is None or answer.died:
                    name = f"{type(task).__name__} {planned.key}"
                    deaths[name] += 1
                    if deaths[name] < _DEATHS:
                        tasks.again(task)
                        continue
                found = answer or EndedRun({}, None, 0.0, _died(planned.row))
                for run, each in tasks.ended(task, found):
                    ended.add(run, each)
                    shown.count(failed=each.error is not None, saved=each.calls.store)


def _died(row: Row) -> str:
    return (
        f"{DIED}the process of this run ({row}) died {_DEATHS} times: it may need more memory than there is (with "
        "fewer workers= each has more), or end the process itself. Make the same call to carry the run out again"
    )


class _EndedRuns:
    """Runs that have ended, and are to be written to the folder together."""

    def __init__(self, files: StudyFolder) -> None:
        self._files = files
        self._number = files.next_part()
        self._ended: list[tuple[PlannedRun, EndedRun]] = []
        self._bytes = 0
        self._due = time.monotonic() + _FLUSH_S

    def add(self, planned: PlannedRun, ended: EndedRun) -> None:
        self._ended.append((planned, ended))
        self._bytes += len(ended.series or b"")

    def flush_if_due(self) -> None:
        late = time.monotonic() >= self._due
        if late or len(self._ended) >= _FLUSH_RUNS or self._bytes >= _FLUSH_BYTES:
            self.flush()

    def flush(self) -> None:
        self._due = time.monotonic() + _FLUSH_S
        if self._ended:
            ended, self._ended, self._bytes = self._ended, [], 0
            self._files.write_part(self._number, ended)
            self._number += 1


class StudyProgress(ProgressLine):
    """Display of a study's progress: the numbers of ended and failed runs, the time left, and the calls saved."""

    def __init__(self, total: int, left: int, *, shown: bool) -> None:
        super().__init__(total, shown=shown)
        self._total, self._left, self._done, self._failed = total, left, 0, 0
        self._saved = 0
        self._begun = time.monotonic()

    def count(self, *, failed: bool, saved: int = 0) -> None:
        """Count a run that has ended, and the calls whose answers it found in the store."""
        self._done += 1
        self._failed += failed
        self._saved += saved

    def show_if_due(self) -> None:
        """Show the progress, if it is time."""
        if not self.is_due():
            return
        seconds = (time.monotonic() - self._begun) / max(1, self._done) * (self._left - self._done)
        ended = self._total - self._left + self._done
        failed = f", {self._failed:,} failed" if self._failed else ""
        failed += f", {self._saved:,} calls saved" if self._saved else ""
        left = f", about {_span(seconds)} left" if self._done else ""
        self.show(ended, f"{ended:,} of {self._total:,} runs{failed}{left}")


def _span(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"
>>>>>>> main
