"""Source for the page of a study: its runs, their outcomes by parameters, and its progress."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ray_messaging.errors import ConfigError
from ray_messaging.inspector.page_values import cut, name
from ray_messaging.inspector.sources.log_rows import RunFacts
from ray_messaging.studies.bootstrap import Interval
from ray_messaging.studies.study import LEVEL, Study
from ray_messaging.studies.study_folder import StudyFolder

MOST_ROWS = 200  # the table shows at most this many combinations of values of the parameters
_MOST_POINTS, _MOST_LINES, _MOST_CELLS = 200, 9, 2_500
# The number of resamples for an interval. It is small, because a page is drawn again and again while a study goes on.
_RESAMPLES = 2_000
_PAGES = ("Overview", "Society", "Search", "Conversation", "Agent", "Calls", "Why", "Rules", "Dead letters")


class Choice(NamedTuple):
    """What a page draws: an outcome over the parameter `x`, with a line for each value of `by` ("": one line)."""

    outcome: str
    x: str
    by: str


@dataclass(frozen=True, slots=True)
class StudyTable:
    """The state of a study. `planned` is the number of runs that it shall have, or None if its folder does not tell.

    `rows` has one row for each combination of values of the parameters. If the study has more than MOST_ROWS
    combinations, `rows` has only MOST_ROWS of them. `all_rows` is the number of all combinations.
    """

    text: str
    ended: int
    planned: int | None
    failed: int
    error: str
    parameters: list[str]
    outcomes: list[str]
    rows: list[dict[str, Any]]
    all_rows: int


@dataclass(frozen=True, slots=True)
class Curves:
    """The means of an outcome for each value of the parameters `by` and `x`, with their bootstrap intervals.

    `lines` has, by the value of `by`, the intervals by the value of `x`. `numeric` says whether the values of `x` are
    numbers. `note` is a text for the page.
    """

    choice: Choice
    lines: dict[str, dict[Any, Interval]]
    numeric: bool
    note: str


@dataclass(frozen=True, slots=True)
class HeatMap:
    """The mean of an outcome for each pair of values of two parameters with which there are runs.

    `columns` and `rows` have the values of the two parameters as texts. Each item of `means` has the index of a column,
    the index of a row, and the mean.
    """

    choice: Choice
    columns: list[str]
    rows: list[str]
    means: list[tuple[int, int, float]]


class StudyFacts(RunFacts):
    """The facts that the pages show about a study, from its folder. A changed folder is read again."""

    lacks = _PAGES

    def __init__(self, folder: str | Path) -> None:
        self._folder = str(folder)
        self._files = StudyFolder(folder)
        self._state: object = None
        self._study = Study(folder)
        self._table: tuple[Study, StudyTable] | None = None  # the last table, and its study
        self.title = name(self._folder.rstrip("/").rpartition("/")[2] or self._folder)
        self.phase = "study"

    @property
    def study(self) -> Study:
        """Return the study as it is now; raise LogError if the folder cannot be read."""
        if (state := self._files.state()) != self._state:
            self._study, self._state = Study(self._folder), state
        return self._study

    def table(self) -> StudyTable:
        """Return the state of the study: the same object as before, if the study has not changed.

        The intervals are those of `Study.summary`.
        """
        study = self.study
        # Another thread may replace self._study while this one makes the table, so the table is kept with its study.
        if self._table is not None and self._table[0] is study:
            return self._table[1]
        failed = [run.error for run in study._runs if run.error is not None]
        rows = study._summary(LEVEL, MOST_ROWS)
        planned = study._record.get("planned")
        found = StudyTable(
            text=repr(study),
            ended=len(study),
            planned=planned if isinstance(planned, int) else None,
            failed=len(failed),
            error=cut(failed[0], 400) if failed else "",
            parameters=study.parameters,
            outcomes=study._numbers(),
            rows=rows,
            all_rows=len(study._by_row()),
        )
        self._table = study, found
        return found

    def curves(self, asked: Choice) -> Curves | None:
        """Return the curves for a choice, or None if the study has no parameter, or no outcome that is a number.

        Raises: ConfigError if the parameter `x` or `by` of the choice has too many values for a page.
        """
        study = self.study
        choice = _known(study, asked)
        if choice is None:
            return None
        _check_few(study, choice.x, _MOST_POINTS)
        if choice.by:
            _check_few(study, choice.by, _MOST_LINES)
        found, counts = study._curves(choice.x, choice.outcome, choice.by or None, LEVEL, _RESAMPLES)
        values = [at for line in found.values() for at in line]
        numeric = all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
        lines = {str(value): dict(sorted(line.items()) if numeric else line.items()) for value, line in found.items()}
        many = f"{min(counts):,} to {max(counts):,}" if len(counts) > 1 else f"{max(counts, default=0):,}"
        return Curves(choice, lines, numeric, f"Means of {many} runs, with intervals of {LEVEL:.0%}.")

    def heat_map(self, asked: Choice) -> HeatMap | None:
        """Return the mean of the outcome for each value of `x` and each value of `by`.

        The result is None if the study has fewer than two parameters, or no outcome that is a number.

        Raises: ConfigError if `x` and `by` have too many pairs of values for a page.
        """
        study = self.study
        choice = _known(study, asked)
        others = [each for each in study.parameters if choice is not None and each != choice.x]
        if choice is None or not others:
            return None
        choice = choice._replace(by=choice.by or others[0])
        columns, rows = (_in_order(study._levels(each)) for each in (choice.x, choice.by))
        if len(columns) * len(rows) > _MOST_CELLS:
            raise ConfigError(
                f"{choice.x!r} and {choice.by!r} have {len(columns) * len(rows):,} pairs of values, and the page draws "
                f"at most {_MOST_CELLS:,}: choose other parameters, or use study.to_pandas()"
            )
        sums: dict[tuple[str, str], list[float]] = {}
        for run in study._runs:
            if (value := run.outcomes.get(choice.outcome)) is not None:
                sums.setdefault((str(run.row[choice.x]), str(run.row[choice.by])), []).append(float(value))
        places = [{value: place for place, value in enumerate(each)} for each in (columns, rows)]
        means = [
            (places[0][column], places[1][row], sum(values) / len(values)) for (column, row), values in sums.items()
        ]
        return HeatMap(choice, [*map(name, columns)], [*map(name, rows)], sorted(means))


def _known(study: Study, asked: Choice) -> Choice | None:
    """Return the choice `asked`, with other names in place of those that the study does not have.

    An unknown outcome or `x` is replaced by the study's first outcome or parameter, and an unknown `by` is replaced by
    "". The result is None for a study without numeric outcomes or without parameters.
    """
    outcomes, parameters = study._numbers(), study.parameters
    if not outcomes or not parameters:
        return None
    x = asked.x if asked.x in parameters else parameters[0]
    return Choice(
        asked.outcome if asked.outcome in outcomes else outcomes[0],
        x,
        asked.by if asked.by in parameters and asked.by != x else "",
    )


def _check_few(study: Study, parameter: str, most: int) -> None:
    if (found := len(study._levels(parameter))) > most:
        raise ConfigError(
            f"the parameter {parameter!r} has {found:,} values, and the page draws at most {most:,}: choose another "
            "parameter, or use study.to_pandas()"
        )


def _in_order(values: Sequence[Any]) -> list[str]:
    numbers = all(isinstance(each, int | float) for each in values)
    return [*map(str, sorted(values) if numbers else values)]
