"""The class `Group`, the picklable handle of a group, whose calls block, for drivers and tasks."""

from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

from ray_messaging.addressing.channels import AGENT_CHAT, AgentId
from ray_messaging.cluster.handles.group.async_group import AsyncGroup, StampedHandle, StepStamp
from ray_messaging.cluster.handles.group.waiting import Blocking
from ray_messaging.cluster.spec import Experiment
from ray_messaging.common.awaitables import finish
from ray_messaging.common.notebook import html_table
from ray_messaging.conversations.answer_stream import GroupAnswers
from ray_messaging.default_limits_and_leases import ANSWER_TIMEOUT_S

if TYPE_CHECKING:
    from ray_messaging.steps.step import Step

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    call: Callable[Concatenate[AsyncGroup, P], Coroutine[Any, Any, T]],
) -> "Callable[Concatenate[Group, P], T]":
    """Return a blocking method that runs a coroutine method of `AsyncGroup` with the same arguments."""

    @wraps(call)
    def blocking(group: "Group", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return finish(call(group._calls, *args, **kwargs))

    return blocking


class Group(StampedHandle):
    """Handle of a group, a Ray actor that hosts agents: sends for its agents, and fetches their messages.

    `actor` is the actor's Ray handle, and `aio` has the same calls for async code. Sends of one handle keep their
    order, and a send that Ray repeats is executed once. A Ray task gets its own copy of a handle. A Ray task that
    fetches should call `ack()` before it ends, or fetch in a `with` block:

        with group.fetch_messages(timeout=5) as messages: ...      # committed when the block ends without an error
    """

    def __init__(
        self,
        experiment: Experiment,
        name: str,
        actor: Any,  # noqa: ANN401 - a Ray actor handle
        step: int | None = None,
        keep: object = None,
    ) -> None:
        self.name = name
        self.actor = actor
        self._experiment = experiment
        self._stamp = StepStamp(step)
        self._keep = keep  # a reference to the experiment's actors, which end with the last reference
        self._calls = AsyncGroup(experiment, name, actor, self._stamp, Blocking())

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self._experiment.without_password(), self.name, self.actor, self.step)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, exp_id={self._experiment.exp_id!r})"

    def _repr_html_(self) -> str:
        stats = self.stats()
        return html_table(repr(self), {"": [*stats], "now": [*stats.values()]}, len(stats))

    @cached_property
    def aio(self) -> AsyncGroup:
        """Return the calls of this handle for async code: `await group.aio.send(...)`."""
        return AsyncGroup(self._experiment, self.name, self.actor, self._stamp, keep=self._keep)

    send = _blocking(AsyncGroup.send)
    send_messages = _blocking(AsyncGroup.send_messages)
    send_columns = _blocking(AsyncGroup.send_columns)
    broadcast = _blocking(AsyncGroup.broadcast)
    broadcast_columns = _blocking(AsyncGroup.broadcast_columns)
    ask = _blocking(AsyncGroup.ask)
    reply = _blocking(AsyncGroup.reply)
    reply_columns = _blocking(AsyncGroup.reply_columns)
    fetch_messages = _blocking(AsyncGroup.fetch_messages)
    ack = _blocking(AsyncGroup.ack)
    give_up = _blocking(AsyncGroup.give_up)
    fates = _blocking(AsyncGroup.fates)
    stats = _blocking(AsyncGroup.stats)
    add_agents = _blocking(AsyncGroup.add_agents)
    remove_agents = _blocking(AsyncGroup.remove_agents)
    move_agents = _blocking(AsyncGroup.move_agents)

    def ask_columns(
        self,
        from_ids: object,
        to_ids: object,
        payloads: object,
        *,
        subtopic: str = AGENT_CHAT,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> GroupAnswers:
        """Ask many agents, with columns as in `send_columns`; return an object that collects their answers.

        `for answer in answers` yields the answers as they arrive, as Messages, and `answers.wait()` waits for all of
        them; both end after `timeout` seconds. `answers.to_pandas()` has a row for each question.

        Raises: the same errors as `send_columns`, such as InvalidColumns, UnknownSender, MailboxFull and
        OutcomeUnknown.
        """
        return finish(self._calls.ask_into(GroupAnswers, from_ids, to_ids, payloads, subtopic, timeout))

    def steps(self, *, until: int, leave: bool = False) -> "Iterator[Step]":
        """Iterate over the steps of this group's agents, from the first uncommitted step up to the one before `until`.

        Requesting the next step commits the current one. After a `break` or an exception the current step is not
        committed, and the next call of `steps` runs it again. All groups must iterate at the same time, because each
        group waits until the other groups have ended the previous step. If Ray tasks iterate, give these tasks
        num_cpus=0, so that none of them waits for a free CPU.

        Args: with `leave` the group takes no part in step `until` and later steps, and the other groups do not wait
        for it. Without `leave`, they wait for it in step `until`.
        Raises: ConfigError if the experiment has no steps; AlreadyExists if another Ray task or program iterates over
        the steps of this group; StepAborted or StepTooLarge if a step could not be committed.
        """
        from ray_messaging.cluster.handles.group.group_steps import group_steps  # noqa: PLC0415 - most groups have no steps

        return group_steps(self._experiment, self.name, until, leave=leave)

    @property
    def state(self) -> bytes | None:
        """Return the group's state, as bytes, after its last committed step; None if the group has set no state.

        Raises: ConfigError if the experiment has no steps.
        """
        return finish(self._calls.state())

    @property
    def agents(self) -> list[AgentId]:
        """Return the agents of this group."""
        return finish(self._calls.agents())
