"""The result of a run."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame


@dataclass(frozen=True)
class Result:
    """The result of `messaging.run`: plain and picklable.

    `states` maps each agent, or with by="group" each group, to its state after the last step. `fates` counts the
    messages of all steps since the experiment began, by fate. `digests` maps each of the last 64 steps to the digest of
    its messages, in hex, with `Steps(digest=True)`. `steps` is the first step that did not run; where Ctrl-C ended the
    run before its time, `stopped` is True.
    """

    states: dict[Any, Any]
    steps: int
    fates: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    stopped: bool = False

    def __repr__(self) -> str:
        stopped = ", stopped" if self.stopped else ""
        return f"Result({len(self.states):,} states after {self.steps:,} steps{stopped}, {dict(self.fates)})"

    def _repr_html_(self) -> str:
        first = dict(islice(self.states.items(), SHOWN))
        keys = list(dict.fromkeys(key for state in first.values() for key in state))
        columns = {_ids_among(keys): [*first]} | {
            str(key): [state.get(key) for state in first.values()] for key in keys
        }
        return html_table(repr(self), columns, len(self.states))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame of the states: a row per agent, a column per key. Raises ImportError without pandas."""
        keys = list(dict.fromkeys(key for state in self.states.values() for key in state))
        ids = _ids_among(keys)
        columns = {key: [state.get(key) for state in self.states.values()] for key in keys}
        return data_frame(columns | {ids: [*self.states]}).set_index(ids).rename_axis("agent")


def _ids_among(keys: Collection[str]) -> str:
    """Return a name for the column of the agents' ids, which is none of the states' keys."""
    name = "agent"
    while name in keys:
        name += " id"
    return name
