"""The class `Study`, with the runs of `batch_run` as tables, effects and plots."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from ray_messaging.cluster.run.result import CallCounts
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame
from ray_messaging.common.texts import short_repr, shortened
from ray_messaging.errors import ConfigError, LogError
from ray_messaging.model.series_columns import AGENT, AGENT_NAME, STEP
from ray_messaging.studies.bootstrap import RESAMPLES, Interval, effect_size, mean_interval
from ray_messaging.studies.design import DIGEST, ERROR, REPLICATE, SECONDS, SEED, Row, plain_value
from ray_messaging.studies.study_folder import StoredRun, StudyFolder
from ray_messaging.studies.study_plot import draw

if TYPE_CHECKING:
    from ray_messaging.eventlog.event_log import EventLog
    from ray_messaging.eventlog.reading.event_rows import LogRow
    from ray_messaging.eventlog.reading.step_digests import Difference

LEVEL = 0.95


class Study:
    """The results of a study (a set of runs with different parameters), read from the study's folder.

    `batch_run` returns a Study. A folder can also be opened while its study is going on.

    Args: `folder` is a path, or a URI of pyarrow's file systems.

    Raises: LogError if the folder has no study, or cannot be read.
    """

    def __init__(self, folder: str | Path) -> None:
        self._files = StudyFolder(folder)
        record = self._files.record()
        if record is None:
            text = f"{str(folder)!r} has no study: pass the folder that batch_run got as folder="
            raise LogError(text, path=str(folder))
        self._record = record
        self._owner: object = None  # a temporary folder, which is removed when this object is freed

    @property
    def folder(self) -> str:
        """Return the path of the study's folder."""
        return self._files.where

    @property
    def parameters(self) -> list[str]:
        """Return the names of the parameters."""
        return [*self._record["parameters"]]

    @cached_property
    def outcomes(self) -> list[str]:
        """Return the names of the outcomes that some run has."""
        return [*dict.fromkeys(name for run in self._runs for name in run.outcomes)]

    @cached_property
    def _runs(self) -> list[StoredRun]:
        return [*self._files.runs(self._record).values()]

    @property
    def calls(self) -> CallCounts:
        """Return how many calls agents made by `me.remember`, such as calls of a language model, with tokens and cost.

        Calls of failed runs are left out, except if a run failed because its budget of calls was spent. Steps that
        several runs share (see `vary_from` of `batch_run`) count once.
        """
        return CallCounts.together(run.calls for run in self._runs)

    def __len__(self) -> int:
        return len(self._runs)

    def __repr__(self) -> str:
        rows, failed = len(self._by_row()), sum(run.error is not None for run in self._runs)
        text = f"Study({self.folder!r}: {_counted(len(self), 'run')} of {self._record['model']}, "
        text += f"{_counted(rows, 'row')} of parameters"
        text += f", {failed:,} failed" if failed else ""
        return f"{text}, {calls})" if (calls := str(self.calls)) else f"{text})"

    def _repr_html_(self) -> str:
        rows = self._summary(LEVEL)
        columns = {name: [row[name] for row in rows[:SHOWN]] for name in (rows[0] if rows else {})}
        return html_table(repr(self), columns, len(rows))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame with a row per run: parameters, replicate, seed, outcomes, digest, seconds, error.

        `replicate` is the number of the run among the runs of the same parameters, from 0. The outcomes are the run's
        measures, with a column for each (see `batch_run`). If a run failed, `error` says why and where, and the run's
        outcomes are missing. `digest` is a hash: runs with equal digests have sent equal messages in their last 64
        steps, and have ended with equal states.

        Raises: ImportError without pandas.
        """
        runs = self._runs
        columns: dict[str, Any] = {name: [run.row[name] for run in runs] for name in self.parameters}
        columns |= {REPLICATE: [run.replicate for run in runs], SEED: [run.seed for run in runs]}
        columns |= {name: [run.outcomes.get(name) for run in runs] for name in self.outcomes}
        columns |= {DIGEST: [run.digest for run in runs], SECONDS: [run.seconds for run in runs]}
        return data_frame(columns | {ERROR: [run.error for run in runs]})

    @property
    def series(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame of the values that `collect=` has recorded, by run and step, or by run, step and agent.

        The DataFrame also has the parameters and the replicate of each run.

        Raises: ConfigError if nothing was collected; ImportError without pandas.
        """
        tables = [self._tidy(run) for run in self._runs if run.series is not None]
        if not tables:
            raise ConfigError(
                "this study has collected nothing: pass collect= to batch_run, or aggregates as outcomes="
            )
        columns: dict[str, list[Any]] = {name: [] for name in dict.fromkeys(name for each in tables for name in each)}
        for table in tables:
            rows = len(table[STEP])
            for name, values in columns.items():
                values.extend(table.get(name, [None] * rows))
        if AGENT_NAME in columns:
            pairs = zip(columns[AGENT], columns.pop(AGENT_NAME), strict=True)
            columns[AGENT] = [agent if name is None else name for agent, name in pairs]
        return data_frame(columns)

    def summary(self, *, level: float = LEVEL) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame by combination of parameters: the numbers of runs and failures, and each outcome's mean.

        The bounds of the mean's bootstrap interval are in the columns that end with " low" and " high". Outcomes that
        are strs are left out.

        Args: `level` is the level of the bootstrap interval, such as 0.95.

        Raises: ConfigError for a level that is not between 0 and 1; ImportError without pandas.
        """
        rows = self._summary(level)
        return data_frame({name: [row[name] for row in rows] for name in (rows[0] if rows else {})})

    def effects(
        self,
        base: Mapping[str, Any],
        *,
        outcomes: str | Sequence[str] | None = None,
        level: float = LEVEL,
        resamples: int = RESAMPLES,
    ) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return how outcomes differ from those of a base combination of parameters, as a DataFrame with intervals.

        A combination of parameters is called a row. Each row is compared with its base row, which has the values in
        `base`, and for all other parameters the same values as the row. A run of the row and a run of the base row are
        a pair if they have the same replicate number, and so the same seed. The column `base` has the mean of the
        outcome in the base row, and `mean` has its mean in the row. `difference` is the mean of the differences between
        the two runs of each pair, and `low` and `high` are the bounds of its interval. `size` is Cohen's d, the
        difference divided by the pooled standard deviation of both rows. `pairs` is the number of pairs that were
        compared, and `missing` the number of pairs that were not, because a run failed or lacks the outcome.
        `equal` is the number of pairs whose runs have the same digest (see `to_pandas`). With `batch_run(logs=True)`,
        `first` is a text about the first message in which the runs of a pair differ (None: the runs of each pair sent
        equal messages). Of all pairs, the pair that differs in the earliest step is chosen, and of several such pairs,
        the one with the lowest replicate.

        Args:
            base: Values of some parameters, or of all, such as {"rule": "none"}.
            outcomes: The name of an outcome, or several names; None: all outcomes except strs.
            level: The level of the interval. With 0.95, the intervals of about 95 of 100 studies contain the true
                difference.
            resamples: The number of resamples of the bootstrap.

        Raises: ConfigError if an argument is not valid, such as an outcome that is unknown or a str, if no run or every
        run has the values in `base`, or if the study lacks a base row; ImportError if pandas is not installed.
        """
        _check_level(level)
        if isinstance(resamples, bool) or not isinstance(resamples, int) or resamples < 1:
            raise ConfigError(f"resamples={resamples!r} must be a whole number, at least 1")
        wanted = self._numbers() if outcomes is None else self._named(outcomes)
        logs = bool(self._record.get("options", {}).get("logs"))
        by_row = self._by_row()
        values = self._base(base)
        found = []
        for key, runs in by_row.items():
            row = runs[0].row
            partner = {**row, **values}
            if _row_key(partner) == key:
                continue
            if (theirs := by_row.get(_row_key(partner))) is None:
                raise ConfigError(
                    f"the runs with {row} are to be compared with runs with {partner}, but the study has no such runs: "
                    "choose a base= whose values occur together with the other values of each row"
                )
            first = {"first": self._first_message(runs, theirs)} if logs else {}
            found += [
                dict(by_row[key][0].row) | {"outcome": name} | _effect(runs, theirs, name, level, resamples) | first
                for name in wanted
            ]
        if not found:
            raise ConfigError(
                f"all runs of the study have {dict(values)}: no run is left to compare with them. Choose another base="
            )
        return data_frame({name: [each[name] for each in found] for name in found[0]})

    def log(self, row: Mapping[str, Any], replicate: int = 0) -> "EventLog":
        """Return the event log of a run. The study must have been made with `batch_run(logs=True)`.

        Args:
            row: The values of all parameters.
            replicate: The number of the run among the runs of its row, from 0.

        Raises: ConfigError if the study keeps no logs, or has no such run; LogError if the log cannot be read.
        """
        if not self._record.get("options", {}).get("logs"):
            raise ConfigError(f"the study in {self.folder!r} has no logs: make a study with batch_run(..., logs=True)")
        plain = {name: plain_value(value) for name, value in row.items()}
        equal = [run for run in self._runs if run.row == plain and run.replicate == replicate]
        if equal:  # rows with 1 and with True are equal: of several equal rows, the one with the same types is meant
            return self._log_of(min(equal, key=lambda run: _row_key(run.row) != _row_key(plain)))
        raise ConfigError(
            f"the study has no run with {plain} and replicate {replicate}: study.to_pandas() lists all runs"
        )

    def _log_of(self, run: StoredRun) -> "EventLog":
        from ray_messaging.eventlog.event_log import EventLog  # noqa: PLC0415 - imports pandas, a third of a second

        return EventLog.open(self._files.log_of(run.key))

    def _first_message(self, runs: Sequence[StoredRun], base: Sequence[StoredRun]) -> str | None:
        """Return a text about the first message in which a run differs from the base run of the same replicate number.

        Return None if no run differs from its base run.
        """
        theirs = {run.replicate: run for run in base}
        found: list[tuple[int, int, Difference]] = []
        for run in runs:
            other = theirs.get(run.replicate)
            # Runs with equal digests are compared, too, because a digest has only the messages of the last 64 steps.
            if other is None or None in (run.digest, other.digest):
                continue
            logs = [self._log_of(run), self._log_of(other)]
            # If neither run has sent messages, both logs are empty, and there is nothing to compare.
            if any(log.end >= 0 for log in logs) and (first := logs[0].diff(logs[1])) is not None:
                found.append((first.step, run.replicate, first))
        if not found:
            return None
        step, replicate, first = min(found, key=lambda each: each[:2])
        return (
            f"step {step}, replicate {replicate}: agent {first.agent!r} sent {_message(first.mine)}, and in the base "
            f"{_message(first.theirs)}"
        )

    def plot(self, x: str, y: str, *, by: str | None = None, level: float = LEVEL) -> Any:  # noqa: ANN401 - matplotlib's Figure
        """Return a figure of an outcome's mean and its bootstrap interval, over a parameter or over the steps.

        Args:
            x: The name of a parameter, or "step".
            y: The name of an outcome. If x is "step", the name of a value that an aggregate has collected.
            by: The name of a parameter. The figure has a line for each of its values.
            level: The level of the bootstrap interval.

        Raises: ConfigError for an unknown name, if values are not numbers, or if a parameter has a bool and an equal
        number, such as False and 0; ImportError, which says how to install matplotlib, if it is not installed.
        """
        intervals, counts = self._curves(x, y, by, level)
        pooled = [name for name in self.parameters if name not in (x, by) and len(self._levels(name)) > 1]
        note = f"means of {_range(counts)} runs, intervals of {level:.0%}"
        return draw(intervals, x, y, by, f"{note}, over all values of {_names(pooled)}" if pooled else note)

    def _curves(
        self, x: str, y: str, by: str | None, level: float, resamples: int = RESAMPLES
    ) -> tuple[dict[Any, dict[Any, Interval]], set[int]]:
        """Return what `plot` draws: {value of `by`: {value of `x`: mean and interval}}, and the set of sample sizes."""
        _check_level(level)
        for name in (x, by):
            if name not in (None, STEP if name == x else None) and name not in self.parameters:
                raise ConfigError(
                    f"{'x' if name == x else 'by'}={name!r} is not a parameter of the study: write one of "
                    f"{_names(self.parameters)}{', or x=' + repr(STEP) if name == x else ''}"
                )
        for name in {*self.parameters} & {x, by}:
            levels = self._levels(name)
            if len({*map(_hashable, levels)}) < len({(type(each) is bool, _hashable(each)) for each in levels}):
                raise ConfigError(
                    f"the parameter {name!r} has a bool and a number that are equal in Python, as 0 and False are, so "
                    f"that they would be drawn as one value: {', '.join(map(repr, levels[:20]))}. Use a text in place "
                    "of the bool, such as 'none'"
                )
        points: dict[Any, dict[Any, list[float]]] = {}
        for run, at, value in self._values(y, over_steps=x == STEP):
            line = points.setdefault(None if by is None else _hashable(run.row[by]), {})
            line.setdefault(at if x == STEP else _hashable(run.row[x]), []).append(value)
        intervals = {
            line: {at: mean_interval(values, level=level, resamples=resamples) for at, values in some.items()}
            for line, some in points.items()
        }
        return intervals, {len(values) for some in points.values() for values in some.values()}

    def _values(self, name: str, *, over_steps: bool) -> Iterator[tuple[StoredRun, Any, float]]:
        """Yield (run, None, value) for an outcome, or with `over_steps`, (run, step, value) for a collected value."""
        if not over_steps:
            self._named(name)
            for run in self._runs:
                if (value := run.outcomes.get(name)) is not None:
                    yield run, None, float(value)
            return
        for run in self._runs:
            if run.series is None:
                continue
            table = self._files.series_of(run)
            if AGENT in table.column_names:
                raise ConfigError(
                    "the study collects a value for each agent, but a plot over steps needs one for each step: plot "
                    f"study.series with pandas, or collect an aggregate, such as Mean({name!r})"
                )
            if name not in table.column_names:
                known = [column for column in table.column_names if column != STEP]
                raise ConfigError(f"y={name!r} was not collected: write one of {_names(known)}")
            for at, value in zip(table[STEP].to_pylist(), table[name].to_pylist(), strict=True):
                if value is not None:
                    yield run, at, float(value)

    def _by_row(self) -> dict[str, list[StoredRun]]:
        found: dict[str, list[StoredRun]] = {}
        for run in self._runs:
            found.setdefault(_row_key(run.row), []).append(run)
        return found

    def _levels(self, name: str) -> list[Any]:
        # Values that are equal, such as 1, 1.0 and True, look different in a table, and are different levels.
        return [*{repr(run.row[name]): run.row[name] for run in self._runs}.values()]

    def _base(self, base: Mapping[str, Any]) -> Row:
        if not isinstance(base, Mapping) or not base:
            raise ConfigError(
                f"base={short_repr(base)} must be a dict of at least one parameter, such as {{'rule': 'none'}}"
            )
        found = {}
        for name, value in base.items():
            if name not in self.parameters:
                raise ConfigError(
                    f"base= has {name!r}, which is not a parameter of the study: write one of {_names(self.parameters)}"
                )
            levels, plain = self._levels(name), plain_value(value)
            if not (equal := [level for level in levels if level == plain]):
                raise ConfigError(
                    f"no run has {name}={value!r}: write one of the values {', '.join(map(repr, levels[:20]))}"
                )
            # The study's own value is returned, such as 1 for 1.0. Of several equal values of the study, such as 0 and
            # False, the value with the type of the given value is returned.
            found[name] = next((level for level in equal if type(level) is type(plain)), equal[0])
        return found

    def _numbers(self) -> list[str]:
        texts = {name for run in self._runs for name, value in run.outcomes.items() if isinstance(value, str)}
        return [name for name in self.outcomes if name not in texts]

    def _named(self, outcomes: str | Sequence[str]) -> list[str]:
        names = [outcomes] if isinstance(outcomes, str) else [*outcomes]
        for name in names:
            if name not in self.outcomes:
                failed = next((run.error for run in self._runs if run.error is not None), None)
                why = f"; some runs failed, the first with the error {failed}" if failed else ""
                raise ConfigError(f"no run has the outcome {name!r}: write one of {_names(self.outcomes)}{why}")
            if name not in self._numbers():
                raise ConfigError(f"the outcome {name!r} is a str in some runs, but means need numbers: choose another")
        return names

    def _summary(self, level: float, most: int | None = None) -> list[dict[str, Any]]:
        """Return the rows of `summary` as dicts by column. `most` limits the number of rows (None: no limit)."""
        _check_level(level)
        found = []
        for runs in islice(self._by_row().values(), most):
            row = dict(runs[0].row) | {"runs": len(runs), "failed": sum(run.error is not None for run in runs)}
            for name in self._numbers():
                values = [float(value) for run in runs if (value := run.outcomes.get(name)) is not None]
                mean, low, high = mean_interval(values, level=level)
                row |= {name: mean, f"{name} low": low, f"{name} high": high}
            found.append(row)
        return found

    def _tidy(self, run: StoredRun) -> dict[str, list[Any]]:
        table: pa.Table = self._files.series_of(run)
        known = {name: [run.row[name]] * len(table) for name in self.parameters} | {
            REPLICATE: [run.replicate] * len(table)
        }
        return known | {name: table[name].to_pylist() for name in table.column_names}


def _effect(
    runs: Sequence[StoredRun], base: Sequence[StoredRun], name: str, level: float, resamples: int
) -> dict[str, Any]:
    theirs = {run.replicate: run for run in base}
    pairs = [(run, theirs[run.replicate]) for run in runs if run.replicate in theirs]
    both = [(one, other) for one, other in pairs if None not in (one.outcomes.get(name), other.outcomes.get(name))]
    values = [float(one.outcomes[name]) for one, _ in both]
    others = [float(other.outcomes[name]) for _, other in both]
    differences = [value - other for value, other in zip(values, others, strict=True)]
    difference, low, high = mean_interval(differences, level=level, resamples=resamples)
    mean: Callable[[list[float]], float] = lambda some: sum(some) / len(some) if some else float("nan")  # noqa: E731
    return {
        "base": mean(others), "mean": mean(values), "difference": difference, "low": low, "high": high,
        "size": effect_size(values, others), "pairs": len(both), "missing": len(pairs) - len(both),
        "equal": sum(one.digest == other.digest for one, other in both),
    }  # fmt: skip


def _message(row: "LogRow | None") -> str:
    """Return a message's payload, recipient and fate as text; "nothing" if the message was not sent."""
    if row is None:
        return "nothing"
    by = f" by {row.rule}" if row.rule is not None else ""
    to = "the user" if row.to_id is None else f"agent {row.to_id!r}"
    return f"{shortened(row.text)} to {row.audience or to} ({row.fate}{by})"


def _check_level(level: float) -> None:
    if isinstance(level, bool) or not isinstance(level, float) or not 0 < level < 1:
        raise ConfigError(f"level={level!r} must be a number between 0 and 1, such as 0.95")


def _row_key(row: Row) -> str:
    return repr({name: row[name] for name in sorted(row)})


def _hashable(value: Any) -> Any:  # noqa: ANN401 - a value of a parameter
    return value if isinstance(value, str | int | float | bool | type(None)) else str(value)


def _names(names: Sequence[str]) -> str:
    return ", ".join(map(repr, islice(names, 20))) or "none"


def _range(counts: set[int]) -> str:
    return "no" if not counts else f"{min(counts):,}" if len(counts) == 1 else f"{min(counts):,} to {max(counts):,}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"
