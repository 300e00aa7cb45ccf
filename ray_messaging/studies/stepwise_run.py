"""A local run that waits after each step until it is told to go on, for the web page that shows a model."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

import pyarrow as pa

from ray_messaging.cluster.handles.own_loop import SharedLoop
from ray_messaging.cluster.run.local_run import Part, planned_part
from ray_messaging.cluster.run.result import cause_of
from ray_messaging.cluster.run.run_actor import GroupResult
from ray_messaging.cluster.run.run_plan import RunOptions
from ray_messaging.common.texts import short_repr
from ray_messaging.embedded.local_server import LocalServer
from ray_messaging.errors import ConfigError, StepFailed
from ray_messaging.eventlog.series_tables import joined, series_table
from ray_messaging.model.series_columns import TAKEN
from ray_messaging.studies.by_name import bound
from ray_messaging.transports.step_values import Collected, CollectedKind

_OPTIONS = ("by", "concurrency", "timeout", "collect", "only_active")
_OTHERS = ("model", "agents", "start", "graph", "shared", "rules", "groups", "seed", "calls", "until")
_UNENDING = 10**9  # the number of steps for a run without `until`
_CHUNKS = 64


class StepwiseRun:
    """A run like one of `ray_messaging.run`, but each call of `advance` runs only the next steps.

    Args: `arguments` are those of `run`, with `model`. `values` are the parameters that functions among the
    arguments may take by name.

    Raises: ConfigError for an argument that a model's page does not take (it takes fewer than `run`), for an `until`
    that is a condition, and if the model or the agents are missing.
    """

    def __init__(self, arguments: Mapping[str, Any], values: Mapping[str, Any], seed: int) -> None:
        if strange := arguments.keys() - {*_OPTIONS, *_OTHERS}:
            raise ConfigError(
                f"the argument {min(strange)!r} is unknown: a model's page takes {', '.join((*_OTHERS, *_OPTIONS))}"
            )
        if lacking := {"model", "agents"} - arguments.keys():
            raise ConfigError(
                f"{min(lacking)!r} is missing in what the function of a model's page has returned: it must return the "
                "arguments of a run, such as {'model': person, 'agents': 100, ...}"
            )
        until = arguments.get("until")
        if until is not None and (isinstance(until, bool) or not isinstance(until, int)):
            raise ConfigError(
                f"until={short_repr(until)} must be a number of steps: a model's page accepts no condition. Leave "
                "until= out: then the run goes on until it is paused"
            )
        start = arguments.get("start")
        by_name = dict(values)
        self._model = bound(arguments["model"], 2, by_name)
        self._options = RunOptions(
            None if start is None else bound(start, 1, by_name),
            arguments.get("by", "agent"),
            arguments.get("concurrency", 100),
            arguments.get("timeout"),
            arguments.get("collect", _plain_state if arguments.get("by", "agent") == "agent" else None),
            1,
            arguments.get("only_active", False),
        )
        self._given: dict[str, Any] = {
            name: arguments.get(name) for name in ("agents", "groups", "graph", "shared", "calls")
        }
        self._rules, self._seed = [*arguments.get("rules", ())], arguments.get("seed", seed)
        self._most: int | None = until
        self._server = LocalServer()
        self._loop = SharedLoop("model's page")
        self._running: Future[Part] | None = None  # the run, which waits between two steps
        self._orders: asyncio.Queue[tuple[int, Future[None]] | None] = asyncio.Queue()
        self._collected: pa.Table | None = None
        self.step = 0

    @property
    def over(self) -> bool:
        """Return whether the run has reached its end, which the argument `until` gives."""
        return self._most is not None and self.step >= self._most

    def advance(self, steps: int = 1) -> pa.Table | None:
        """Run more steps, and return what was collected in all steps so far (None: nothing was collected yet).

        If a step fails, the run stays where it was before that step. Raises the same errors as `run`.
        """
        try:
            if self._running is None:
                self._begin()
            assert self._running is not None
            answer: Future[None] = Future()
            self._loop.begin(self._orders.put((steps, answer)))
            both: list[Future[Any]] = [answer, self._running]
            wait(both, return_when=FIRST_COMPLETED)
            if not answer.done():  # the run has ended with an error
                ended, self._running = self._running, None
                self._loop.leave()
                ended.result()
            answer.result()
        except StepFailed as error:
            raise error.with_traceback(None) from cause_of(
                error
            )  # drops this package's frames from the traceback, up to this one
        return self._collected

    def _begin(self) -> None:
        work = planned_part(
            self._model,
            until=_UNENDING if self._most is None else self._most,
            max_steps=None,
            options=self._options,
            rules=self._rules,
            seed=self._seed,
            progress=False,
            server=self._server,
            pace=self._pace,
            **self._given,
        )
        self._orders = asyncio.Queue()
        self.step, self._collected = 0, None
        self._loop.enter()
        self._running = self._loop.begin(work())

    async def _pace(self, go_on: Callable[..., Awaitable[Sequence[GroupResult]]]) -> tuple[Sequence[GroupResult], int]:
        """Run the steps that `advance` asks for, until `close` is called.

        Return the groups' final results, and the number of steps that were run.
        """
        while (order := await self._orders.get()) is not None:
            steps, answer = order
            try:
                until = self.step + steps
                for step in range(self.step, until if self._most is None else min(until, self._most)):
                    parts = await go_on(step + 1, with_states=False, stands=True, with_collected=True)
                    if min(part.until for part in parts) <= step:  # the budget of calls is spent
                        break
                    self._note(step, parts)
            except Exception as error:  # noqa: BLE001 - the caller of `advance` gets it
                answer.set_exception(error)
            else:
                answer.set_result(None)
        return await go_on(self.step, with_states=False), self.step

    def _note(self, step: int, parts: Sequence[GroupResult]) -> None:
        """Add what the groups have collected in a step to the table of collected values."""
        self.step = step + 1
        if self._options.collect is None:
            return
        kind = CollectedKind.SERIES
        new = series_table([Collected("", kind, step, "", part.collected) for part in parts if part.collected])
        whole = new if self._collected is None else joined([self._collected, new])
        # With very many chunks, each reading of the table would take longer.
        self._collected = whole.combine_chunks() if step % _CHUNKS == 0 else whole

    def close(self) -> None:
        """End the run, and stop its server."""
        running, self._running = self._running, None
        if running is not None:
            self._loop.begin(self._orders.put(None))
            wait([running])
            self._loop.leave()
        self._server.stop()


def _plain_state(me: Any) -> dict[str, Any]:  # noqa: ANN401 - an Agent
    """Return, by key, those values in an agent's state that are numbers, bools or texts.

    Values under the keys in TAKEN are left out, because the table of collected values has other columns of these names.
    """
    state = {str(key): value for key, value in me.state.items() if isinstance(value, bool | int | float | str)}
    return {key: value for key, value in state.items() if key not in TAKEN}
