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
    """Run a model for each combination of parameters and each replicate, and return the results as a Study.

    Each run is a call of `ray_messaging.run` in a process with one core. If this process uses Ray, or RAY_ADDRESS names
    a cluster, the processes are Ray tasks. Otherwise they are processes of this machine. The result of a run does not
    depend on the machine or process. Runs that have ended are written to the folder. If the program dies, the same call
    in a new program goes on with the remaining runs. If the process of a run dies, the run is made again. If a run
    raises an exception, the study has the error in place of the run's results, and the other runs go on.

    The model gets parameters by name, such as `def person(me, inbox, *, chance)`, and so do all functions that are
    passed here. They may also take the run's `seed` and `replicate`, and `row`, the dict of all parameters.

    Args:
        model: The model, as for `run`, which may take parameters by name.
        parameters: The rows of parameters: a dict that has a list of values for each parameter, so that each
            combination of values is a row; or a list of dicts, one for each row; or a DataFrame.
        agents: As for `run`, or a function of parameters that returns it.
        until: The number of steps of a run, or a function of parameters that returns it. With `max_steps`, a
            condition as for `run`. The condition may take parameters by name after the collected values, such as
            `lambda now, goal: now["mood"] > goal`.
        max_steps: If `until` is a condition: the most steps of a run, or a function of parameters that returns it.
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
        vary_from: The first step in which the rows' own values are used for the parameters in `before`. If rows differ
            only in these parameters, the steps before `vary_from` are run only once for all of these rows (in each
            replicate), and each row goes on from there. This cannot be combined with a budget of calls.
        before: Values that replace those of the rows in the steps before `vary_from`, such as {"limit": "none"}.
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
        raise ConfigError(f"workers={workers!r} must be an int of at least 1, the number of runs at the same time")
    design = design_of([{}] if parameters is None else parameters, replicates, seed)
    # If the folder exists, it may have the results of all runs, so that no worker is needed.
    new = (folder is None or not Path(folder).exists()) and not whole_cluster
    with early_workers(len(design), workers, here=logs) if new else nullcontext() as early:
        # The workers were started first, so that their imports go on during these imports, which take as long.
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
            budget = None if calls is None else calls.budget
            carry_out_all(files, record, design, made, workers, shared_steps, budget, progress=progress)
    study = Study(files.where)
    study._owner = owner
    if failed := sum(run.error is not None for run in study._runs):
        first = next(run for run in study._runs if run.error is not None)
        sys.stderr.write(f"{failed:,} of {len(design):,} runs failed; the first error: {first.error}\n")
    return study
