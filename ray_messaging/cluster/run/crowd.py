"""The class `Crowd`, a group's agents as arrays, for a model that is called once for each group in each step."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.audiences.hearer_pairs import places_in
from ray_messaging.cluster.run.agent import NO_CHANGE, START, check_agents, kept_parts, step_failed
from ray_messaging.cluster.run.collector import Collector
from ray_messaging.cluster.run.kinds import Kinds, among
from ray_messaging.cluster.run.model_thread import ModelThread
from ray_messaging.cluster.run.step_calls import unfit_answer
from ray_messaging.common.awaitables import RAISED, raising
from ray_messaging.errors import ConfigError
from ray_messaging.model.agent_sets import NO_AGENTS, AgentSet
from ray_messaging.model.exact import decode_exactly, type_name
from ray_messaging.model.places import checked_text
from ray_messaging.model.read_only import ReadOnlyAttributes
from ray_messaging.model.typed.input import exact_array, holds_all
from ray_messaging.steps.agent_places import AgentPlaces
from ray_messaging.steps.call_memory import CallMemory
from ray_messaging.steps.digests import id_bytes
from ray_messaging.steps.moved_agents import Arrival
from ray_messaging.steps.random_numbers import uniform_rows
from ray_messaging.steps.step import Step

_encode = msgspec.msgpack.encode


class Crowd(ReadOnlyAttributes):
    """All agents of a group: `ids` (int64, or object if some are strs), and `state`, a dict of arrays.

    In a run with by="group", the function that was passed to `run` gets a Crowd. `name` is the group's name, and
    `shared` the object that was passed to `run`. `kind` is the kind of all agents of the group, such as "trader", if
    the run has several kinds of agents.
    """

    __slots__ = ("_draw", "ids", "kind", "name", "shared", "state")
    if TYPE_CHECKING:
        name: str
        kind: str | None
        ids: NDArray[Any]
        shared: Any

    _called, _given = "group", frozenset(("ids", "kind", "name", "shared"))

    def __init__(self, name: str, ids: NDArray[Any], shared: object, kind: str | None = None) -> None:
        self._put("name", name)
        self._put("kind", kind)
        self._put("ids", ids)
        self._put("shared", shared)
        self.state: dict[str, NDArray[Any]] = {}
        # A function that draws uniform random numbers of the step, or of `start`.
        self._draw: Callable[[int], NDArray[np.float64]] | None = None

    def uniform(self, k: int = 1) -> NDArray[np.float64]:
        """Return k uniform random numbers in [0, 1) for each agent, float64 (n, k). Row i belongs to `ids[i]`.

        The numbers depend only on the seed, the step and the agent. The numbers in the `start` function differ from
        those in step 0.

        Raises: ConfigError unless k is a number of at least 0.
        """
        assert self._draw is not None
        return self._draw(k)

    def __repr__(self) -> str:
        return f"Crowd({self.name!r}, {len(self.ids):,} agents)"


class CrowdSociety:
    """Runner of a model that is called once for a whole group in each step, with the group's agents as arrays."""

    def __init__(
        self,
        group: str,
        model: Callable[[Crowd, Step], object],
        *,
        start: Callable[[Crowd], dict[str, NDArray[Any]]] | None = None,
        shared: object = None,
        thread: ModelThread | None = None,
        collector: Collector | None = None,
        kinds: Kinds | None = None,
    ) -> None:
        self._group = group
        self._kinds = {} if kinds is None else kinds
        self._kind = next(iter(self._kinds), None)
        self._model = model
        self._start = start
        self._shared = shared
        self._collector = collector
        self._model_thread = thread or ModelThread()
        self._crowd: Crowd | None = None
        self.change = NO_CHANGE
        # The last step that this process ran to its end. `_crowd` has the group's state after this step.
        self.last_step: int | None = None

    async def run(self, step: Step, _calls: CallMemory | None = None) -> None:
        """Run a step of the model; raise StepFailed if a function of the user raises an exception."""
        starts = False
        if (
            self._crowd is None
            or step.number - 1 != self.last_step
            or step.arrivals
            or step.before != step.places.agents
        ):
            self.read(step.agents, step.state, step.before, step.arrivals)
            starts = step.state is None
        self.last_step = None
        await self._model_thread.call(self._run, step, starts)
        self.last_step = step.number

    def _run(self, step: Step, starts: bool) -> None:  # noqa: FBT001 - by the thread's call
        """Run the step, in the model's thread. If `starts` is true, the group has no state yet."""
        crowd = self._crowd
        assert crowd is not None
        if starts and self._start is not None:
            with self._named_in_errors("start", step):
                crowd._draw = partial(uniform_rows, step.seed, START, step.places)
                state = raising(self._start, crowd)
                if not isinstance(state, dict):
                    raise TypeError(
                        f"start= returned an object of type {type(state).__name__}: it must return a dict of arrays"
                    )
                crowd.state = {name: _checked(name, array).copy() for name, array in state.items()}
        if step.number == self.change.step:
            with self._named_in_errors("states=", step):
                self._change_states(crowd)
        with self._named_in_errors("the model", step):
            crowd._draw = step.uniform
            answer = raising(self._model, crowd, step)
            if answer is not None:
                raise unfit_answer(answer, "group")
        if self._collector is not None and self._collector.is_due(step.number):
            with self._named_in_errors("collect", step):
                step.keep_series(raising(self._collector.of_group, crowd))
        with self._named_in_errors("the model", step):
            step.state = _encoded(crowd)

    @contextmanager
    def _named_in_errors(self, name: str, step: Step) -> Iterator[None]:
        try:
            yield
        except RAISED as error:
            raise step_failed(error, name, self._group, step.number) from error

    def _change_states(self, crowd: Crowd) -> None:
        for place, agent in enumerate(crowd.ids.tolist()):
            for name, value in self.change.states.get(agent, {}).items():
                array, given = crowd.state[name], exact_array(value, f"states[{agent!r}][{name!r}]")
                if array.shape[:1] != crowd.ids.shape:
                    raise TypeError(
                        f"group.state[{name!r}] must have a row for each agent, but its shape is {array.shape}, and "
                        f"the group has {len(crowd.ids):,} agents"
                    )
                try:
                    array[place] = given
                    same = np.array_equal(array[place].astype(given.dtype), given, equal_nan=given.dtype.kind == "f")
                except ValueError:  # such as a text for an array of numbers
                    same = False
                if not same or (array.dtype.kind != given.dtype.kind and array[place].tolist() != given.tolist()):
                    raise TypeError(
                        f"group.state[{name!r}] has the dtype {array.dtype}, which cannot hold the "
                        f"{type(value).__name__} {value!r} exactly: give this array another dtype in start="
                    )

    @property
    def states(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Return the state of the group, a dict of arrays, as {group: state}; the state is {} before the first step."""
        return {self._group: {} if self._crowd is None else self._crowd.state}

    @property
    def ids(self) -> dict[str, NDArray[Any]]:
        """Return the ids of the agents as {group: ids}. The ids are in the order of the rows of the state's arrays."""
        return {self._group: NO_AGENTS.column.to_numpy() if self._crowd is None else self._crowd.ids}

    def read(
        self,
        agents: Any,  # noqa: ANN401 - a sequence of ids
        state: bytes | None,
        before: AgentSet | None = None,
        arrivals: Sequence[Arrival] = (),
    ) -> None:
        """Load a group's committed state.

        Args: `agents` are the group's agents now. `before` has the agents to which `state` belongs (None: the same as
        `agents`). `arrivals` has the agents that have come from other groups, with the states of those groups.
        """
        ids = agents.column.to_numpy()
        others = among(agents.agents, {kind: found for kind, found in self._kinds.items() if kind != self._kind})
        for kind, strangers in others.items():
            raise ConfigError(
                f"agent {next(iter(strangers))!r} of the kind {kind!r} has moved to group {self._group!r}, whose "
                f"agents are of the kind {self._kind!r}: with by='group' move agents only to groups of their own kind"
            )
        self._crowd = Crowd(self._group, ids, self._shared, self._kind)
        own = Arrival(NO_AGENTS, self._group, state, agents.agents if before is None else before)
        self._crowd.state = self._kept(own, len(ids))
        if not arrivals and own.before == agents.agents:
            return
        parts = [(own.before, self._crowd.state), *((part.before, self._kept(part, len(ids))) for part in arrivals)]
        self._crowd.state = _gathered(agents.agents, parts)

    def _kept(self, part: Arrival, count: int) -> dict[str, NDArray[Any]]:
        """Return the arrays in a group's committed state by name, or {} if the group has no state.

        Args: `part` has the state, and the agents to which it belongs. `count` is the number of agents of this run's
        group, which an error names.
        """
        if part.state is None:
            return {}
        known, kept = kept_parts(part.state, 2, part.group)
        check_agents(known == _ids_of(part.before.column.to_numpy()), part.group, count)
        return {name: _array(*parts) for name, parts in kept.items()}


def _encoded(crowd: Crowd) -> bytes:
    kept = {}
    for name, array in crowd.state.items():
        found = _checked(name, array)
        kept[name] = type_name(found.dtype), found.shape, found.tobytes()
        # The group keeps a copy that shares its memory with no other array. The same is true after a restart, when the
        # arrays are made from the stored bytes.
        crowd.state[name] = found.copy()
    return _encode((_ids_of(crowd.ids), kept))


def _checked(name: object, value: Any) -> NDArray[Any]:  # noqa: ANN401 - what a user keeps
    """Return the value of the key `name` of a group's state as an array.

    Raises: TypeError if the conversion to an array would change the value, or if the key is not a str.
    """
    place = f"group.state[{name!r}]"
    if type(name) is not str:
        raise TypeError(f"{place} has a key of type {type(name).__name__}: use a str")
    checked_text(name, "a key of group.state")
    return exact_array(value, place)


def _gathered(agents: AgentSet, parts: Sequence[tuple[AgentSet, dict[str, NDArray[Any]]]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a group after agents have moved: one row for each of `agents`.

    Arrays of the group that do not have a row for each agent stay as they are.

    Args: each of `parts` has the agents and the arrays of one group before the move. The first one is the group itself.

    Raises: ConfigError if the rows of an array have different shapes, or types that no common type can hold.
    """
    gathered = {name: array for name, array in parts[0][1].items() if array.shape[:1] != (len(parts[0][0]),)}
    rows: dict[str, list[tuple[AgentSet, NDArray[Any]]]] = {}
    for before, arrays in parts:
        for name, array in arrays.items():
            if name not in gathered and array.shape[:1] == (len(before),):
                rows.setdefault(name, []).append((before, array))
    for name, found in rows.items():
        # Arrays without rows are ignored, because a group without agents cannot know the rows' type and shape.
        filled = [(before, array) for before, array in found if len(array)] or found[:1]
        row = _common_row(name, [array for _, array in filled])
        made = np.zeros((len(agents), *row.shape), row.dtype)
        for before, array in filled:
            here = agents.find(before.column)
            made[places_in(agents, before.column)[here]] = array[here]
        gathered[name] = made
    return gathered


def _common_row(name: str, arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Return a row of zeros that has the shape of the arrays' rows, and a type that holds all their values exactly.

    Raises: ConfigError if the rows have different shapes, or if there is no such type.
    """
    shapes = {array.shape[1:] for array in arrays}
    kinds = {"number" if array.dtype.kind in "biuf" else array.dtype.kind for array in arrays}
    if len(shapes) == len(kinds) == 1:
        common = np.result_type(*{array.dtype for array in arrays})
        if all(holds_all(common, array) for array in arrays):
            return np.zeros(shapes.pop(), common)
    listed = ", ".join(f"{array.dtype} of shape {('n', *array.shape[1:])}" for array in arrays)
    raise ConfigError(
        f"agents have moved between groups whose group.state[{name!r}] differ: {listed}. Use one type and shape in "
        "all groups"
    )


def state_of(agent: AgentId, hosted: AgentSet, state: bytes) -> dict[str, Any]:
    """Return the state of one agent from the committed state of its group, which hosts the agents `hosted`.

    With by="group", the agent's state is its row of each array that has one row per agent. If the state was not
    committed by a run of `messaging.run`, the result is {}.
    """
    place = AgentPlaces(hosted).place(agent)
    try:
        parts = decode_exactly(state)
        if len(parts) > 2:
            return dict(parts[1][place])
        arrays = {name: _array(*kept) for name, kept in parts[1].items()}
    except (TypeError, ValueError, LookupError):
        return {}
    return {name: array[place].tolist() for name, array in arrays.items() if array.shape[:1] == (len(hosted),)}


def _array(dtype: str, shape: tuple[int, ...], data: bytes) -> NDArray[Any]:
    return np.frombuffer(data, np.dtype(dtype)).reshape(shape).copy()


def _ids_of(ids: NDArray[Any]) -> bytes:
    """Return a digest of the agents' ids in their order."""
    found = ids.tobytes() if ids.dtype != object else b"".join(map(id_bytes, ids.tolist()))
    return blake2b(found, digest_size=16).digest()
