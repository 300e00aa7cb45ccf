"""The handle of a group: picklable, blocking, for drivers and tasks."""

import secrets
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from ray.exceptions import ActorUnavailableError, RayError

from ray_messaging.channels import AGENT_CHAT, AgentId, check_subtopic, parse_channel
from ray_messaging.cluster.calls import insist, result, wait_restart
from ray_messaging.cluster.spec import Experiment
from ray_messaging.errors import ConfigError, InvalidAddress, MessagingError, OutcomeUnknown
from ray_messaging.ids import Ids
from ray_messaging.message import Outgoing
from ray_messaging.messages import Messages
from ray_messaging.msg import Payload
from ray_messaging.receipt import Receipt, Receipts
from ray_messaging.receiving.lending import Token
from ray_messaging.sending.bulk import columns_of, entries_of, frames_of_columns, frames_of_entries


class Group:
    """Send for the agents of a group and fetch what comes to them.

    `actor` is the raw Ray handle. Sends of one handle keep their order, and one that Ray repeats happens once. A handle
    that was passed to a task is a handle of its own. Who fetches and then ends should `ack()`, or fetch by `with`:

        with group.fetch(timeout=5) as messages: ...      # committed when the block ends without an error
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
        self.step = step
        self._experiment = experiment
        self._caller = secrets.token_hex(8)
        self._numbers = 0
        self._waiting: set[int] = set()
        self._sending = threading.Lock()
        self._fetching = threading.Lock()
        self._token: Token | None = None
        self._away = False  # it went down during a send
        self._keep = keep  # the experiment ends with the last one who holds what started it

    def __reduce__(self) -> tuple[Any, ...]:
        return Group, (self._experiment.without_password(), self.name, self.actor, self.step)

    def __repr__(self) -> str:
        return f"Group({self.name!r}, exp_id={self._experiment.exp_id!r})"

    @property
    def _what(self) -> str:
        return f"group {self.name!r} of experiment {self._experiment.exp_id!r}"

    def send(self, from_id: AgentId | None, to_id: AgentId, payload: Payload, subtopic: str = AGENT_CHAT) -> Receipt:
        """Send one message to an agent and return its receipt; raises as `Messager.send_message`."""
        return self.send_many([Outgoing.to_agent(to_id, payload, from_id, subtopic)])[0]

    def send_many(self, messages: Sequence[Outgoing]) -> Receipts:
        """Send many messages; one receipt for each message and recipient, in order."""
        exp_id = self._experiment.exp_id
        entries = entries_of(messages, lambda channel: parse_channel(exp_id, channel), self._payload_bytes)
        return self._relay(frames_of_entries(entries, self.step))

    def send_columns(
        self, from_ids: object, to_ids: object, payloads: object, *, subtopic: str = AGENT_CHAT
    ) -> Receipts:
        """Send n messages given as columns, as `Messager.send_columns` does; they cross Ray as bytes."""
        columns = columns_of(from_ids, to_ids, payloads, self._payload_bytes)
        return self._relay(frames_of_columns(columns, check_subtopic(subtopic), self.step))

    @property
    def _payload_bytes(self) -> int:
        return self._experiment.settings.payload_bytes

    def _relay(self, frames: list[bytes]) -> Receipts:
        if not frames:
            return Receipts([])
        if self._away:  # a call made while it starts again would fail, and nobody would know that it was never made
            wait_restart(self.actor, self._experiment.settings.send_timeout_s)
            self._away = False
        number = -1
        try:
            with self._sending:
                number = self._numbers
                self._numbers += 1
                self._waiting.add(number)
                ref = self.actor.relay.remote(self._caller, number, min(self._waiting), frames)
            receipts: Receipts = result(ref, what=self._what, sends=True)
        except OutcomeUnknown as error:
            self._away = isinstance(error.__cause__, ActorUnavailableError)
            raise
        else:
            return receipts
        finally:  # whatever happened: nobody may wait for this number any more
            with self._sending:
                self._waiting.discard(number)

    def fetch(self, *, limit: int | None = None, timeout: float | None = 0.0) -> "Fetched":
        """Return what has arrived, at most `limit`; wait up to `timeout` seconds (None: for ever) for the first.

        What this handle's last fetch returned is committed now. What a handle holds for longer than
        `MessagingConfig.loan_s`, because its task died or ended without `ack`, goes to the next one that fetches.
        """
        if limit is not None and limit < 1:
            raise ConfigError(f"limit must be at least 1, not {limit!r}: leave it out to fetch all that is there")
        with self._fetching:
            arguments = (self._caller, self._token, limit, timeout)
            self._token, messages = insist(self.actor, lambda: self.actor.fetch.remote(*arguments), what=self._what)
        return Fetched(messages, self)

    def ack(self) -> None:
        """Commit what this handle's last fetch returned."""
        with self._fetching:
            insist(self.actor, lambda: self.actor.ack.remote(self._caller, self._token), what=self._what)
            self._token = None

    def give_up(self) -> None:
        """Hand back what this handle's last fetch returned, unhandled: the next one that fetches gets it."""
        with self._fetching:
            insist(self.actor, lambda: self.actor.give_up.remote(self._caller, self._token), what=self._what)
            self._token = None

    @property
    def agents(self) -> list[AgentId]:
        """Return the agents of this group."""
        agents: Ids = insist(self.actor, self.actor.agents.remote, what=self._what)
        # None of a group's agents is None: that is the user.
        return [agent_id for agent_id in agents.tolist() if agent_id is not None]

    def stats(self) -> dict[str, Any]:
        """Return counters of this group."""
        stats: dict[str, Any] = insist(self.actor, self.actor.stats.remote, what=self._what)
        return stats


class Fetched(Messages):
    """Be a fetched batch: a `with` block over it commits it, or hands it back where it ends by an error."""

    __slots__ = ("_group",)

    def __init__(self, messages: Messages, group: Group) -> None:
        super().__init__(messages.exp_id, messages.slices)
        self._group = group

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._group.ack()
        else:
            with suppress(MessagingError, RayError):  # the error at hand is the one to tell of
                self._group.give_up()


def check_agents(agents: object) -> None:
    """Raise InvalidAddress where a group's agents are no collection of ids."""
    if isinstance(agents, str | bytes) or not hasattr(agents, "__iter__"):
        raise InvalidAddress(f"agents must be a list, range or array of ids, not {agents!r}", value=agents)
