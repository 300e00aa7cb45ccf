"""Types of the arguments of a run, for type checkers and editors. A run checks its arguments itself when it begins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, Required, SupportsIndex, TypedDict, TypeVar
from uuid import UUID

from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.cluster.handles.audience import Audience
from ray_messaging.cluster.run.agent import Agent
from ray_messaging.cluster.run.crowd import Crowd
from ray_messaging.messages import Messages
from ray_messaging.model.aggregates import Aggregate
from ray_messaging.model.collect import Of
from ray_messaging.steps.step import Step

S_contra = TypeVar("S_contra", contravariant=True)

AgentModel = Callable[[Agent, Messages], object]  # async or plain
GroupModel = Callable[[Crowd, Step], object]


# What a user may pass as an id, such as a UUID, a numpy integer or a node of a networkx lattice. `check_id` makes an
# AgentId of it.
AnyId = AgentId | UUID | SupportsIndex | tuple[Any, ...]


class Ids(Protocol):
    """The type of ids of agents, such as a list, a range or an array. A str does not fit, although it is a sequence."""

    def __iter__(self) -> Iterator[AnyId]: ...
    def __len__(self) -> int: ...
    def __contains__(self, value: object, /) -> bool: ...  # excludes str: its `__contains__` takes only a str


class DataFrameLike(Protocol):
    """The type of a DataFrame, such as pandas', with only those attributes that a run uses."""

    @property
    def index(self) -> Any:  # noqa: ANN401 - pandas is an extra
        """Return the ids of agents."""

    def itertuples(self) -> Iterable[Any]:
        """Return the rows."""


class NetworkxGraph(Protocol):
    """The type of a networkx graph, with only those attributes that a run uses."""

    @property
    def edges(self) -> Any:  # noqa: ANN401 - networkx is an extra
        """Return the edges."""

    def is_directed(self) -> bool:
        """Return whether edges lead only from their first to their second node."""


# The Mapping has, for each kind of agents, the ids of these agents.
Agents = int | Ids | Iterator[AnyId] | DataFrameLike | Mapping[str, Ids | Iterator[AnyId]]
Edges = Iterable[Sequence[AnyId] | NDArray[Any]] | DataFrameLike | NetworkxGraph | Audience
Until = int | Callable[[Mapping[str, Any]], bool]  # a number of steps, or a condition on the collected values
Collect = Callable[[S_contra], Mapping[str, Any]] | Aggregate | Of | Sequence[Aggregate | Of] | None


class RunArguments(TypedDict, total=False):
    """Keyword arguments that all runs take, for type checkers. `Messaging.run` describes them."""

    agents: Required[Agents]
    groups: int | Mapping[str, Ids] | None
    shared: object
    collect_every: int


class AgentArguments(RunArguments, total=False):
    """Further keyword arguments of a run whose model is called for each agent, for type checkers."""

    start: Callable[[Agent], dict[str, Any]] | Mapping[str, Callable[[Agent], dict[str, Any]]] | None
    graph: Edges | str | None
    concurrency: int
    timeout: float | None
    collect: Collect[Agent]
    only_active: bool


class GroupArguments(RunArguments, total=False):
    """Further keyword arguments of a run whose model is called once for each group, for type checkers."""

    start: Callable[[Crowd], dict[str, Any]] | Mapping[str, Callable[[Crowd], dict[str, Any]]] | None
    collect: Collect[Crowd]
