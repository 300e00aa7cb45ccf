"""The agents that a message could have influenced: its readers, the readers of their messages, and so on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import with_exact_integers
from ray_messaging.eventlog.reading.causes import (
    DEPTH,
    check_at_least_1,
    found_message,
    line_of,
    outside_of_steps,
)
from ray_messaging.eventlog.reading.event_rows import LogRow
from ray_messaging.eventlog.reading.expansion import NEEDED, Expansion
from ray_messaging.eventlog.reading.filters import Filters
from ray_messaging.eventlog.reading.results import stored, with_ids
from ray_messaging.eventlog.reading.scan import View, scan
from ray_messaging.model.fates import STORED
from ray_messaging.steps.box_frames import FIRST_ADDED

_COLUMNS = [*stored(NEEDED), "step", "ordinal"]
# The ends of the names of columns with ids, such as from_id. An int id is in a column "..._id", a str id in "..._name".
_KINDS = {"id": pa.int64(), "name": pa.string()}


@dataclass(frozen=True, slots=True)
class Effects:
    """The agents that a message could have influenced in the steps from `first` up to the one before `end`.

    Step `first` is the step in which the message was read. If the log has fewer steps than were asked for, `end` is the
    step after the log's last one. If nobody has read the message, `first` and `end` are None.

    `agents` is a table with the columns `step` and `agent`. The table has each agent once, with the first step in which
    the agent could have been influenced.
    """

    message: LogRow
    first: int | None
    end: int | None
    agents: pa.Table

    def counts(self) -> pa.Table:
        """Return a table with the columns `step`, `agents` and `all`.

        `agents` is the number of agents that the message could have influenced in the step for the first time, and
        `all` is the sum of these numbers up to the step.
        """
        steps = np.arange(self.first or 0, self.end or 0)
        new = np.bincount(self.agents["step"].to_numpy() - (self.first or 0), minlength=len(steps))
        return pa.table({"step": steps, "agents": new, "all": np.cumsum(new)})

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas.DataFrame, where pandas is installed
        """Return `agents` as a pandas.DataFrame."""
        return self.agents.to_pandas()

    def __str__(self) -> str:
        return "\n".join([line_of(self.message), *self._said()])

    def _said(self) -> Iterator[str]:
        yield "no agent reads this message in a step" if self.first is None else "agents that it could have influenced:"
        for step, new, total in zip(*self.counts().to_pydict().values(), strict=True):
            yield f"  step {step}: {new:,} more, {total:,} in all"

    def _repr_html_(self) -> str:
        found = self.counts().slice(0, SHOWN)
        return html_table(line_of(self.message), found.to_pydict(), (self.end or 0) - (self.first or 0))


def effects(view: View, *, message_id: str, depth: int = DEPTH) -> Effects:
    """Return the agents that a message could have influenced, see `EventLog.effects`."""
    steps = check_at_least_1("depth", depth)
    message = found_message(view, message_id)
    if message.ordinal is None or message.step is None:
        raise outside_of_steps(
            message, "so its effects cannot be traced: choose a message of an experiment with steps=Steps()"
        )
    if message.fate not in STORED or message.step_read is None:
        return Effects(message, None, None, _table([]))
    first, reach = message.step_read, _Reach(view)
    own = Filters(message_id=message.message_id, step=message.step, fate=STORED)
    reach.add(first, scan(view, own, _COLUMNS))
    end = _end(view, first, first + steps)
    for step in range(first + 1, end):
        reach.add(step, map(reach.moved, scan(view, Filters(step_read=step, fate=STORED), _COLUMNS)))
    return Effects(message, first, end, _table(reach.found))


def _end(view: View, first: int, wanted: int) -> int:
    """Return the step after the log's last step, but at most `wanted` and at least `first` + 1."""
    if any(True for _ in scan(view, Filters(step_read=slice(wanted - 1, None), limit=1), ["step_read"])):
        return wanted
    parts = scan(view, Filters(step_read=slice(first, wanted)), ["step_read"], raw=True)
    return max((pc.max(part["step_read"]).as_py() for part in parts), default=first) + 1


class _Reach:
    """The agents that a message could have influenced so far. `found` has for each step a table of the new agents."""

    def __init__(self, view: View) -> None:
        self.found: list[pa.Table] = []
        self._expansion = Expansion(view.folder)
        self._agents: dict[str, pa.Array] = {form: pa.array([], kind) for form, kind in _KINDS.items()}
        self._since: dict[str, NDArray[np.int64]] = {form: np.zeros(0, np.int64) for form in _KINDS}

    def moved(self, rows: pa.Table) -> pa.Table:
        """Return those rows whose sender the message could have influenced before the sender sent them.

        Messages that were not sent by an agent in a step are left out.
        """
        steps, moved = rows["step"].to_numpy(), np.zeros(len(rows), np.bool_)
        for form, agents in self._agents.items():
            places = pc.index_in(rows[f"from_{form}"], agents).fill_null(-1).to_numpy()
            known = np.flatnonzero(places >= 0)
            moved[known] |= self._since[form][places[known]] <= steps[known]
        # Ordinals from FIRST_ADDED on belong to messages that rules added, or that were sent outside of steps.
        moved &= rows["ordinal"].to_numpy() < FIRST_ADDED
        return rows.filter(pa.array(moved))

    def add(self, step: int, parts: Iterator[pa.Table]) -> None:
        """Add the agents that read some messages in `step`. `parts` has the messages as rows."""
        pieces = [piece for part in parts if len(part) for piece in self._expansion.expanded(part, Filters())]
        for form, kind in _KINDS.items():
            readers = pa.chunked_array([chunk for piece in pieces for chunk in piece[f"to_{form}"].chunks], kind)
            new = pc.unique(readers).drop_null()
            new = new.filter(pc.invert(pc.is_in(new, self._agents[form])))
            self._agents[form] = pa.concat_arrays([self._agents[form], new])
            self._since[form] = np.concatenate([self._since[form], np.full(len(new), step)])
            self.found.append(pa.table({"step": pa.array(np.full(len(new), step)), f"from_{form}": new.sort()}))


def _table(found: list[pa.Table]) -> pa.Table:
    """Return agents as a table of step and agent.

    The column of agents is int64, or strings if any id is a str.
    """
    columns = pa.schema([("step", pa.int64()), ("from_id", pa.int64()), ("from_name", pa.string())])
    table = with_ids(pa.concat_tables([columns.empty_table(), *found], promote_options="default"))
    return with_exact_integers(table.rename_columns(["step", "agent"]))
