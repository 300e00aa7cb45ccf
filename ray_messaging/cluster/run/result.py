"""The class `Result`, which `messaging.run` returns."""

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.notebook import SHOWN, html_table
from ray_messaging.common.tables import data_frame
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.model.call_usage import money_of
from ray_messaging.model.series_columns import AGENT, AGENT_NAME, STEP

if TYPE_CHECKING:
    from ray_messaging.cluster.run.run_actor import GroupResult

_NAMED = 5  # how many addresses `Result.undeliverable` has at most


class CallCounts(NamedTuple):
    """Numbers of a run's calls through `me.remember`, by the source of their results, with their tokens and cost.

    `model` counts the calls in which the function itself was called. `kept` counts results that were stored when the
    same step ran before, but was not committed. `parent` counts results from the parent of a fork, and `store` those
    from the store of `Calls(store=)`. `failed` counts calls that have used tokens, but failed. `spent` is True if the
    run ended because the budget of `Calls(budget=)` was spent. `unused` counts calls that were made ahead of time, as
    wait_for="neighbours" allows, but that their step did not need.

    `input_tokens` and `output_tokens` were used in this run, also by failed tries. `cached_tokens` are a part of the
    `input_tokens`. `cost` is the cost of these tokens by the prices of `Calls(cost=)`, in `currency`. `saved_tokens`
    were used when the answers from the store were made, and `saved_cost` is what they would cost by the prices of this
    run.
    """

    model: int = 0
    kept: int = 0
    parent: int = 0
    retries: int = 0
    spent: bool = False
    store: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    cost_parts: int = 0
    currency: str = ""
    unused: int = 0
    saved_tokens: int = 0
    saved_parts: int = 0

    @property
    def cost(self) -> Decimal:
        """Return the exact cost of this run's calls through `me.remember`, in `currency`."""
        return money_of(self.cost_parts)

    @property
    def saved_cost(self) -> Decimal:
        """Return what the answers that came from the store of `Calls(store=)` would have cost in this run."""
        return money_of(self.saved_parts)

    def __str__(self) -> str:
        return calls_text(self._asdict(), self.currency)

    @classmethod
    def together(cls, counts: Iterable[Self]) -> Self:
        """Add up counts, which must have the same currency. `spent` is True if it is True in one of the counts."""
        found, whole = [*counts], Counter[str]()
        for each in found:
            whole.update({name: value for name, value in each._asdict().items() if name not in ("spent", "currency")})
        currencies = (each.currency for each in found if each.currency)
        return cls(**whole, spent=any(each.spent for each in found), currency=next(currencies, ""))


def calls_text(counts: Mapping[str, int], currency: str) -> str:
    """Return a text with the numbers of calls through `me.remember`, tokens and money; "" if there are none.

    Args: `counts` has fields of `CallCounts`, and may have the number of "waiting" calls.
    """
    told = {
        "calls": counts.get("model", 0),
        "answered before": counts.get("kept", 0) + counts.get("parent", 0),
        "from the store": counts.get("store", 0),
        "waiting": counts.get("waiting", 0),
        "retries": counts.get("retries", 0),
        "failed": counts.get("failed", 0),
        "made in vain": counts.get("unused", 0),
        "tokens": counts.get("input_tokens", 0) + counts.get("output_tokens", 0),
    }
    texts = [f"{count:,} {name}" for name, count in told.items() if count]
    if currency and told["tokens"]:
        texts.append(f"{money_of(counts.get('cost_parts', 0)):,} {currency}")
    if tokens := counts.get("saved_tokens", 0):
        texts.append(f"saved {tokens:,} tokens")
        texts += [f"{money_of(parts):,} {currency}" for parts in [counts.get("saved_parts", 0)] if parts]
    return ", ".join(texts)


@dataclass(frozen=True)
class Result:
    """The result of `run` or `messaging.run`, a plain object that can be pickled.

    `states` maps each agent, or with by="group" each group, to its state after the last step. With by="group" `ids`
    maps each group to its agents, in the order of the arrays in the group's state. `fates` counts the messages of all
    steps since the experiment began, by what became of them, such as "delivered". `undeliverable` has the number of
    messages to each of a few addresses on which nobody listens. Such an address is an agent that no group hosts, a
    subtopic on which the group of an agent does not listen, or a channel. With `Steps(digest=True)`, `digests` maps
    each of the last 64 steps to a hash of its messages, in hex (see `EventLog.digest`). `steps` is the number of the
    next step to run. `stopped` is True if Ctrl-C, or the budget of `Calls(budget=)`, has ended the run early. `calls`
    has the numbers of calls that agents have made by `me.remember` in this run, such as calls of a language model, with
    their tokens and their cost. `collected` is the Arrow table from which `series` is made, or None if the run had no
    `collect=`.
    """

    states: dict[AgentId, dict[str, Any]]
    steps: int
    fates: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    stopped: bool = False
    ids: dict[str, NDArray[Any]] = field(default_factory=dict)
    undeliverable: dict[str, int] = field(default_factory=dict)
    calls: CallCounts = field(default_factory=CallCounts)
    collected: Any = field(default=None, repr=False)  # a pyarrow.Table; None: the run has no `collect=`

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Compute the digests when they are first read, if `gathered` got a function for them."""
            later = self.__dict__.get("_digests") if name == "digests" else None
            if later is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)
            self.__dict__["digests"] = found = later()
            del self.__dict__["_digests"]  # this frees the messages to which the function refers
            return found

    def __getstate__(self) -> dict[str, Any]:
        digests = self.digests  # reading the attribute computes the digests
        return vars(self) | {"digests": digests}

    @property
    def series(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame of what `collect=` has recorded, with a row for each step, or for each agent in each step.

        The index is the step, or the step and the agent. The DataFrame also has the steps of earlier runs, if their
        data are still in the log's folder, or, without a log, on the server.

        Raises: ConfigError if this run had no `collect=`; ImportError if pandas is not installed.
        """
        return series_frame(self.collected)

    def __repr__(self) -> str:
        stopped = ", stopped" if self.stopped else ""
        calls = f", {text}" if (text := str(self.calls)) else ""
        found = f"Result({len(self.states):,} states after {self.steps:,} steps{stopped}, {dict(self.fates)}{calls})"
        if not self.undeliverable:
            return found
        named = ", ".join(f"{address} ({count:,})" for address, count in self.undeliverable.items())
        return f"{found}; undeliverable, as nobody listens there: {named}"

    def _repr_html_(self) -> str:
        first = dict(islice(self.states.items(), SHOWN))
        columns = _columns([*first.values()])
        shown = {_ids_among(columns): [*first]} | {str(key): values for key, values in columns.items()}
        return html_table(repr(self), shown, len(self.states))

    def to_pandas(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return a DataFrame of the states, with a row for each agent and a column for each key.

        If the run had by="group", the columns are the groups' arrays that have a row for each agent. Other arrays are
        left out.

        Raises: ImportError if pandas is not installed.
        """
        ids, columns = self._by_agent() if self.ids else ([*self.states], _columns([*self.states.values()]))
        name = _ids_among(columns)
        return data_frame(columns | {name: ids}).set_index(name).rename_axis("agent")

    def _by_agent(self) -> tuple[list[AgentId], dict[Any, Any]]:
        """Return all agents in ascending order, and a dict of columns, by the names of the groups' arrays.

        A column has the values of all groups, in the order of the agents.
        """
        ids = [agent for group in self.ids.values() for agent in group.tolist()]
        order = sorted(range(len(ids)), key=lambda place: (isinstance(ids[place], str), ids[place]))
        parts = [
            (len(ids), {key: array for key, array in self.states[group].items() if _is_of(array, ids)})
            for group, ids in self.ids.items()
        ]
        keys = dict.fromkeys(key for _, arrays in parts for key in arrays)
        columns = {key: _joined([(rows, arrays.get(key)) for rows, arrays in parts]) for key in keys}
        return [ids[place] for place in order], {
            key: column[order] if isinstance(column, np.ndarray) else [column[place] for place in order]
            for key, column in columns.items()
        }


def gathered(
    parts: Sequence["GroupResult"],
    until: int,
    by_rules: Mapping[str, int],
    digests: Mapping[int, str] | Callable[[], dict[int, str]],
    collected: Any,  # noqa: ANN401 - a pyarrow.Table
    currency: str = "",
) -> Result:
    """Return the result of a run from the groups' results, `parts`.

    Args: `until` is the step before which the run was to end. If the run has ended earlier, the result is `stopped`.
    `by_rules` has, by fate, what rules for whole steps add to the number of messages. If `digests` is a function, it is
    called when the digests are first read. `currency` is the currency of the prices of calls.
    """
    ended = min(part.until for part in parts)
    fates = sum((part.fates for part in parts), Counter[str]())
    fates.update(by_rules)
    ids = {group: found for part in parts for group, found in part.ids.items()}
    unheard = dict(sum((Counter(part.unheard) for part in parts), Counter[str]()).most_common(_NAMED))
    stopped = ended < until
    calls = CallCounts.together(CallCounts(**part.calls, spent=part.spent, currency=currency) for part in parts)
    result = Result(
        states_of(parts),
        ended,
        fates,
        {} if callable(digests) else dict(digests),
        stopped=stopped,
        ids=ids,
        undeliverable=unheard,
        calls=calls,
        collected=collected,
    )
    if callable(digests):
        del result.__dict__["digests"]
        result.__dict__["_digests"] = digests
    return result


def say_cost(result: Result) -> Result:
    """Write the numbers of a run's calls and their cost to stderr, if calls have prices; return `result` unchanged."""
    if result.calls.currency and (text := str(result.calls)):
        sys.stderr.write(f"{text}\n")
    return result


def states_of(parts: Sequence["GroupResult"]) -> dict[AgentId, dict[str, Any]]:
    """Return the states of all agents, or with by="group" of all groups, sorted by their ids, ints before strs."""
    states = {key: state for part in parts for key, state in part.states.items()}
    return {key: states[key] for key in sorted(states, key=lambda key: (isinstance(key, str), key))}


def cause_of(error: StepFailed) -> RuntimeError | None:
    """Return an error whose text is the traceback within the user's own code, or None if there is no such traceback.

    The user sees this error as the cause of the failed step.
    """
    return RuntimeError(f"in group {error.group!r}\n{error.trace}") if error.trace else None


def series_frame(table: Any) -> Any:  # noqa: ANN401 - a pyarrow.Table, and a pandas.DataFrame
    """Return a table of collected values as a DataFrame, whose index is the step, or the step and the agent.

    Raises: ConfigError if `table` is None, because the run had no `collect=`; ImportError if pandas is not installed.
    """
    if table is None:
        raise ConfigError(
            "this call of run had no collect=, so it has no series: pass collect=, such as collect=lambda me: "
            "{'mood': me.state['mood']}; if the run has a log, messaging.log.series() has what earlier calls have "
            "collected"
        )
    columns = {name: table[name].to_numpy() for name in table.column_names if name not in (AGENT, AGENT_NAME)}
    if AGENT not in table.column_names:
        return data_frame(columns).set_index(STEP)
    if AGENT_NAME in table.column_names:
        pairs = zip(table[AGENT].to_pylist(), table[AGENT_NAME].to_pylist(), strict=True)
        columns[AGENT] = [agent if name is None else name for agent, name in pairs]
    else:
        columns[AGENT] = table[AGENT].to_numpy()
    return data_frame(columns).set_index([STEP, AGENT])


def _columns(states: Sequence[Mapping[Any, Any]]) -> dict[Any, list[Any]]:
    """Return, for each key of the states, a list of its values in all states, with None for a state without the key."""
    keys = dict.fromkeys(key for state in states for key in state)
    return {key: [state.get(key) for state in states] for key in keys}


def _is_of(array: NDArray[Any], ids: NDArray[Any]) -> bool:
    """Return whether an array has a row for each of the agents `ids`."""
    return array.shape[:1] == ids.shape


def _joined(parts: Sequence[tuple[int, NDArray[Any] | None]]) -> NDArray[Any] | list[Any]:
    """Join the arrays that groups have under the same name.

    Args: `parts` has, for each group, its number of agents, and its array (None: the group lacks it).
    Returns: an array if the arrays of all groups have one dimension and the same type. Otherwise a list with the row of
    each agent, which is None in a group without the array.
    """
    filled = [(rows, array) for rows, array in parts if rows]
    arrays = [array for _, array in filled if array is not None]
    if len(arrays) == len(filled) and {array.ndim for array in arrays} == {1} and len({a.dtype for a in arrays}) == 1:
        return np.concatenate(arrays)
    return [value for rows, array in filled for value in ([None] * rows if array is None else _listed(array))]


def _listed(array: NDArray[Any]) -> list[Any]:
    """Return the rows of an array as a list. Dates stay numpy objects, because `tolist` may turn them into ints."""
    return [*array] if array.dtype.kind in "mM" else array.tolist()


def _ids_among(keys: Collection[str]) -> str:
    """Return a name for the column of the agents' ids that is not a key of the states."""
    name = "agent"
    while name in keys:
        name += " id"
    return name
