"""The arguments of a study: their checks, and the record that tells one study from another."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ray_messaging.cluster.run.content_digest import content_digest
from ray_messaging.cluster.run.ending import ending_of
from ray_messaging.cluster.run.model_source import changed_values, functions_among, name_of, source_of, values_used
from ray_messaging.cluster.run.run_plan import RunOptions, check_run
from ray_messaging.common.texts import short_repr
from ray_messaging.errors import ConfigError
from ray_messaging.model.aggregates import Aggregate, Count
from ray_messaging.model.collect import Of, aggregates_of, function_of
from ray_messaging.studies.by_name import GIVEN, bound, check_names, values_of, wanted_by
from ray_messaging.studies.design import ROW, PlannedRun, Row, key_of, parameter_value
from ray_messaging.studies.run_tasks import OF_THE_BEGINNING, RunTemplate
from ray_messaging.studies.study_folder import StoredRun, StudyFolder


class SharedSteps(NamedTuple):
    """The steps before `step`, in which the parameters in `row` have the same values in all runs."""

    step: int
    row: Row

    def before(self, planned: PlannedRun) -> PlannedRun:
        """Return `planned` with the parameters and the key of its shared steps.

        If two runs get the same key here, they share these steps.
        """
        row = planned.row | self.row
        return planned._replace(key=key_of(row, planned.replicate), row=row)


def rules_of(rules: Any) -> list[Any]:  # noqa: ANN401 - as the user has written it
    """Return rules as a list; raise ConfigError if they are not iterable."""
    try:
        return [*rules]
    except TypeError:
        raise ConfigError(
            f"rules={short_repr(rules)} must be a list of rules, or a function of parameters that returns such a "
            "list. For no rules, leave rules= out"
        ) from None


def shared_steps_of(template: RunTemplate, design: Sequence[PlannedRun], step: Any, before: Any) -> SharedSteps | None:  # noqa: ANN401 - as the user has written it
    """Return the first steps that several runs share, or None if no arguments for shared steps were given.

    Raises: ConfigError for arguments that do not allow shared steps, such as a parameter that cannot change during a
    run.
    """
    if step is None and before is None:
        return None
    if isinstance(step, bool) or not isinstance(step, int) or step < 1:
        raise ConfigError(
            f"vary_from={step!r} must be the number of a step, at least 1. Before this step the parameters have the "
            "values in before=, and from this step on the values of each row"
        )
    if not isinstance(before, Mapping) or not before:
        raise ConfigError(
            f"before={short_repr(before)} must be a dict of at least one parameter, with its value before step "
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
                f"the parameter {name!r} in before= cannot change at step {step}, because only start=, agents= or "
                "groups= take it, and they are used only at the beginning of a run: leave it out of before="
            )
        row[name] = parameter_value(value, f"before= has {name}=")
    if (budget := getattr(template.options["calls"], "budget", None)) is not None:
        raise ConfigError(
            f"calls= has budget={budget}, which counts the calls of each run, but with vary_from={step} several "
            "runs share calls: leave one of the two out"
        )
    for name in ("until", "max_steps"):
        most = template.given[name]
        if isinstance(most, int) and most <= step:
            raise ConfigError(
                f"{name}={most} must be above vary_from={step}, the step from which each row's values are used"
            )
    return SharedSteps(step, row)


def outcomes_of(outcomes: Any) -> tuple[list[tuple[str, Callable[..., Any]]], list[Aggregate]]:  # noqa: ANN401 - as the user has written it
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
                        f"outcomes= has {short_repr(function)} under {name!r}: write a function of the result under a "
                        "name, such as {'steps': lambda result: result.steps}"
                    )
                functions.append((name, function))
        elif isinstance(each, Aggregate) or (isinstance(each, Of) and aggregates_of(each)):
            aggregates += aggregates_of(each)
        elif callable(each):
            functions.append(("", each))
        else:
            raise ConfigError(
                f"outcomes= has {short_repr(each)}, which is no outcome: write functions of the result by name, such "
                "as {'steps': lambda result: result.steps}, a function that returns a dict, or an aggregate, such as "
                "Mean('mood')"
            )
    twice = [name for name, count in Counter(name for name, _ in functions if name).items() if count > 1]
    if twice:
        raise ConfigError(f"two outcomes have the name {twice[0]!r}: rename one")
    return functions, aggregates


def collect_of(collect: Any, aggregates: Sequence[Aggregate]) -> Any:  # noqa: ANN401 - as the user has written it
    """Return the argument `collect` with the aggregates in `outcomes` added.

    Raises: ConfigError if `collect` is a function, because a run cannot collect values of agents and aggregates
    together.
    """
    if not aggregates:
        return collect
    if collect is not None and not aggregates_of(collect):
        raise ConfigError(
            f"outcomes= has {aggregates[0]!r}, and collect= is a function: a run collects either aggregates or values "
            "of each agent. Use a function of the result as this outcome, such as lambda result: "
            "result.to_pandas()['mood'].mean()"
        )
    return [*aggregates_of(collect), *aggregates]


def check_together(given: Mapping[str, object]) -> None:
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


def listed(value: Any) -> Any:  # noqa: ANN401 - as the user has written it
    """Return a list in place of an iterator, which only one run could use. Return anything else unchanged."""
    return [*value] if isinstance(value, Iterator) else value


def check_arguments(template: RunTemplate, design: Sequence[PlannedRun]) -> None:
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
                f"the function until= takes {name!r}, which is not a parameter of the study. If the function is a "
                "condition on the collected values, also pass max_steps=, the number of steps after which a run ends "
                "in any case"
            )
    check_names(template.functions(), row)
    if most is not None and not callable(most):
        condition = bound(until, 1, row | dict.fromkeys(GIVEN)) if callable(until) else until
        ending_of(condition, most, RunOptions(None, "agent", 1, None, template.options["collect"]))


def record_of(
    template: RunTemplate, design: Sequence[PlannedRun], seed: int, functions: Sequence[tuple[str, Any]]
) -> dict[str, Any]:
    """Return the record of a study: its model, parameters and options, and digests of other arguments.

    A later call of `batch_run` compares its own record with this one, to check whether the folder has the same study.
    """
    functions_of = {what: function for what, (function, _) in template.functions().items()}
    sources = {what: source_of(function) for what, function in functions_of.items()}
    given = {name: value for name, value in template.given.items() if name not in sources}
    rules = given.pop("rules", None)
    # The digest is "" for an argument that was not given, and None for a given argument that has no digest.
    inputs = {name: "" if value is None else content_digest(value) for name, value in given.items()}
    values = {what: values_used(each) for what, each in functions_of.items()}
    if rules is not None:
        inputs["rules"] = content_digest([(name_of(rule), vars(rule)) for rule in rules])
        values["rules"] = _told_rules(rules)
    collect = template.options["collect"]
    if (function := function_of(collect)[0]) is not None:
        sources["collect"] = source_of(function)
        values["collect"] = values_used(function)
    elif measures := {str(place): each.of for place, each in enumerate(aggregates_of(collect)) if callable(each.of)}:
        values["collect"] = values_used(measures)  # the source of each function is in the options
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
    """Return digests that show a change of rules: of each rule, its functions, and the source of a user's rule classes.

    The keys say in words what each digest is of.
    """
    if not rules:
        return {}
    from ray_messaging.cluster.run.beginning import told_rules  # noqa: PLC0415 - a study without rules need not load it

    found = {f"the rule {name!r}": digest for name, digest in told_rules(rules).items()}
    own = [type(rule) for rule in rules if not type(rule).__module__.startswith("ray_messaging.")]
    for rule in rules:
        found |= functions_among({f"{name!r} of the rule {rule.name!r}": each for name, each in vars(rule).items()})
    return found | {f"the source of {name_of(kind)}": source_of(kind) for kind in own}


def _told(aggregate: Aggregate) -> str:
    of = source_of(aggregate.of) if callable(aggregate.of) else repr(aggregate.of)
    among = "" if aggregate.among is None else f", among={[*aggregate.among]}"
    return f"{aggregate!r}, of={of}, living={aggregate.living}{among}"


def _told_agents(then: Sequence[str], now: Sequence[str]) -> str:
    """Return, for an error's text, which agents `collect` measured in the study, and which it measures now.

    Return "" unless `collect` was and is of the form Of(agents, function), which names the agents.
    """
    if not (then and now and all(each.startswith("[") for each in (*then, *now))):
        return ""
    return f"measures the agents {then[0]}, and here the agents {now[0]}"


def _rows_of(collect: object) -> list[str]:
    """Return the agents that the functions in `collect` measure, as texts for the study's record; [] for all agents."""
    among = function_of(collect)[1]
    return [] if among is None else [repr([*among])]


def check_same(files: StudyFolder, record: Mapping[str, Any], design: Sequence[PlannedRun], currency: str) -> None:
    """Raise ConfigError if the folder has a study that differs from this one, or whose costs have another currency."""
    if (before := files.record()) is None:
        return
    advice = "pass another folder, or begin anew by on_existing='reset'"
    for name in ("model", "seed", "parameters", "outcomes", "options"):
        if (now := record[name]) != (then := before.get(name)):
            what, told = name, ""
            if isinstance(now, dict) and isinstance(then, dict):
                changed = next(key for key in now | then if key not in now or (key, now[key]) not in then.items())
                what, now, then = f"option {changed!r}", now.get(changed), then.get(changed)
                told = _told_agents(then or [], now or []) if changed == "collect" else ""
            told = told or f"is {then!r}, and here {now!r}"
            raise ConfigError(f"the folder {files.where!r} has another study: its {what} {told}; {advice}")
    for name in record["sources"].keys() | before["sources"].keys():
        if record["sources"].get(name) != before["sources"].get(name):
            raise ConfigError(
                f"the source of {name}= has changed since the study in {files.where!r} began (its model is "
                f"{record['model']}), so its runs so far were made with other code. {advice[0].upper()}{advice[1:]}"
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
                f"far were made without this change: {advice}"
            )


def _check_currency(files: StudyFolder, there: Sequence[StoredRun], currency: str) -> None:
    """Raise ConfigError if runs of the study have costs in a currency other than `currency` ("": check nothing)."""
    for run in there if currency else ():
        if run.calls.currency not in ("", currency):
            raise ConfigError(
                f"the prices in calls= are in {currency}, but those of the study in {files.where!r} are in "
                f"{run.calls.currency}, and a study has the sum of all costs: pass prices in {run.calls.currency}, or "
                "another folder"
            )
