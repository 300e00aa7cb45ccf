"""The supervisor of steps: after all groups have closed a step, it applies the verdicts of rules on the whole step."""

import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ray_messaging.addressing.channels import AgentId
from ray_messaging.addressing.directory import Directory, MailboxRecord, Routes
from ray_messaging.audiences.cache import AudienceCache, audience_of
from ray_messaging.common.backoff import STEP_SUPERVISOR_RETRY, Backoff
from ray_messaging.default_limits_and_leases import CALL_BYTES, STEP_LEASE_S, STEP_NEWS_TIMEOUT_S
from ray_messaging.errors import Fenced, MessagingError, StepAborted
from ray_messaging.interception.interceptor.step_judge import RuleReviewer
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.batch import Batch
from ray_messaging.model.extension import AudiencePairs
from ray_messaging.receiving.unfolder import Unfolder
from ray_messaging.sending.bulk_input import edges_of
from ray_messaging.steps.digests import SIZE
from ray_messaging.steps.sent_messages import no_messages, sent_messages
from ray_messaging.steps.step_account import StepCounts, encode_blocked
from ray_messaging.steps.step_destination import AttemptBoxes
from ray_messaging.steps.supervisor_changes import StepChanges
from ray_messaging.transports.step_values import (
    SUPERVISOR,
    Closing,
    Committed,
    Done,
    DrivenGroup,
    Driver,
    Opened,
    StepSettings,
    Waiting,
)
from ray_messaging.transports.transport_values import WRITTEN, FrameWrite, SendStatus

if TYPE_CHECKING:
    from ray_messaging.transports.steps import RedisSteps
    from ray_messaging.transports.transport import RedisTransport

logger = logging.getLogger(__name__)

# The supervisor's start number rises with each start: it is the interceptor's epoch, followed by this many bits. These
# bits count the starts under the same epoch.
_ATTEMPT_BITS = 12


class StepSupervisor:
    """The member of an experiment's steps that closes each step after all groups have closed it.

    Before the supervisor closes a step, it writes what rules on the whole step have decided. After a fault in the
    middle of a step, it begins the step again with a higher attempt number, and what it wrote in the earlier attempt
    does not count.

    Args: `epoch` is the interceptor's epoch, or FOREIGN for a user's own interceptor, which has no epoch on the server.
    `audiences` has the pairs of the audiences to which groups broadcast.
    """

    def __init__(
        self,
        transport: "RedisTransport",
        store: "RedisSteps",
        settings: StepSettings,
        reviewer: RuleReviewer,
        epoch: int,
        audiences: AudienceCache,
    ) -> None:
        self.error = ""  # why the supervisor failed last; "" if it has not failed since it last closed a step
        self.failed_at = 0.0  # the monotonic time, in s, of the first failure since the supervisor last closed a step
        self._transport = transport
        self._store = store
        self._settings = settings
        self._reviewer = reviewer
        self._epoch = epoch
        self._start = max(epoch, 0) << _ATTEMPT_BITS
        self._directory = Directory(transport.exp_id)
        self._boxes = AttemptBoxes(store, SUPERVISOR, 0, -1)
        self._broadcasts = JudgedBroadcasts(audiences, self._current_routes)
        self._state: bytes | None = None
        self._total: Counter[str] = Counter()

    async def run(self) -> None:
        """Close step after step until the supervisor leaves the steps, or until a later interceptor has taken over."""
        backoff = Backoff(STEP_SUPERVISOR_RETRY)
        while True:
            self._start += 1
            try:
                await self._drive()
            except Fenced as error:
                logger.info("a later interceptor supervises the steps: %s", error)
                return
            except MessagingError as error:
                self.failed_at = self.failed_at if self.error else time.monotonic()
                self.error = f"{type(error).__name__}: {error}"
                logger.warning("the rules will judge a step again, because of this error: %s", self.error)
                await backoff.sleep()
            else:
                return

    async def _drive(self) -> None:
        """Close one step after the other, until a call fails or the supervisor no longer takes part."""
        taken = await self._store.take(SUPERVISOR, Driver("interceptor", self._start), STEP_LEASE_S)
        # All interceptors of an experiment have the same driver name, so `take` never finds a driver of another name.
        assert isinstance(taken, DrivenGroup)
        mine = (await self._store.closed_step(taken.closed)).get(SUPERVISOR)
        self._state, self._total = taken.state, Counter()
        if mine is not None:
            # The stored counts say how rules have changed the groups' counts of fates in all earlier steps.
            self._total.update(StepCounts.decode(mine.counts).total)
        await self._reviewer.resume(taken.closed + 1, taken.state, ended=mine is not None)
        self._boxes.attempt = taken.attempt
        number, found = taken.closed + 1, None
        while await self._opened(number, taken.attempt, found):
            self._boxes.begin(number)
            closing = await self._closing(number)
            closed = await self._store.close(SUPERVISOR, taken.attempt, number, closing, go_on=True)
            if not isinstance(closed, Committed):
                raise StepAborted(
                    f"step {number} is not closed: the server has acknowledged {closing.rows:,} messages that rules "
                    f"sent in this step, but now has only {closed.rows:,} of them. The rules judge the step again",
                    step=number,
                    group=SUPERVISOR,
                )
            self._state, self.error = closing.state, ""
            await self._reviewer.begin(number + 1)
            number, found = number + 1, closed.following

    async def _opened(self, number: int, attempt: int, found: Opened | Waiting | Done | None) -> bool:
        """Wait until all groups have closed a step. Return False if the supervisor no longer takes part in the steps.

        Args: `found` is the server's last answer about the step, if there is one.
        """
        while not isinstance(found, Opened):
            if isinstance(found, Done):
                return False
            if found is not None:
                await self._store.wait(found.news, STEP_NEWS_TIMEOUT_S)
            found = await self._store.open(SUPERVISOR, attempt, number)
        return True

    # -- one step -------------------------------------------------------------------------------------------------

    async def _closing(self, number: int) -> Closing:
        """Ask the rules about a step, write their changes, and return the values with which the step is closed."""
        changes, violations, blocked = await self._changes(number)
        for call in _calls(changes.writes):
            await self._send(call)
        state = self._reviewer.dump(violations)
        self._total.update(changes.fates)
        digest = (changes.digest % 2 ** (8 * SIZE)).to_bytes(SIZE, "little") if self._settings.digest else b""
        counts = StepCounts(_counts(changes.fates), digest, _counts(self._total))
        return Closing(self._boxes.rows, counts.encode(), state, state != self._state, blocked=blocked)

    async def _changes(self, number: int) -> tuple[StepChanges, Counter[AgentId | None], bytes]:
        """Return what the rules change in a step, and the number of blocked messages of each sender.

        The third value has the blocked messages, encoded.
        """
        said = self._broadcasts
        said.digests.clear()
        changes = StepChanges(self._boxes, self._directory, said.digests, digest=self._settings.digest)
        violations: Counter[AgentId | None] = Counter()
        if not self._reviewer.reads():
            return changes, violations, b""
        sent = await sent_messages(self._store, number, self._settings.horizon, said.unfold)
        batch = no_messages("", number) if sent is None else sent.batch
        verdict, added = await self._reviewer.review(number, batch)
        if added or verdict.blocked or verdict.rewritten or verdict.labels:
            await self._reload()
        if sent is not None:
            changes.apply(sent, verdict)
        changes.add(added)
        violations.update(batch.from_ids.take(np.fromiter(verdict.blocked, np.intp)).tolist())
        return changes, violations, encode_blocked([(batch, verdict.blocked)])

    async def _reload(self) -> None:
        self._directory.update(*await self._transport.load_directory(self._directory.version))

    async def _current_routes(self) -> Routes:
        """Load the directory of mailboxes, and return the mailboxes to which messages of the open step go."""
        await self._reload()
        return self._directory.read_in(self._boxes.step + 1)

    async def _send(self, writes: Sequence[FrameWrite]) -> None:
        reply = await self._boxes.send(writes, self._epoch)
        lost = [fate.name for fate in reply.fates if fate not in WRITTEN]
        if reply.status is not SendStatus.OK or lost:
            number = self._boxes.step
            raise StepAborted(
                f"the server did not accept what the rules changed in step {number} (status {reply.status.name}, fates "
                f"of the frames that were not written: {lost}). The rules judge the step again",
                step=number,
                group=SUPERVISOR,
            )


class JudgedBroadcasts:
    """The broadcasts of a step as rules judge them: one message for each hearer.

    `digests` has, for each audience, the hash of its pairs, which the step's digest needs.

    Args: `current_routes` loads the directory of mailboxes, and returns the routes of the step's messages.
    """

    def __init__(self, audiences: AudienceCache, current_routes: Callable[[], Awaitable[Routes]]) -> None:
        self.digests: dict[AudiencePairs, bytes] = {}
        self._audiences = audiences
        self._current_routes = current_routes
        self._records: Mapping[str, MailboxRecord] = {}
        # For each mailbox, the Unfolder that turns its folded broadcasts into messages.
        self._unfolders: dict[str, Unfolder] = {}

    async def unfold(self, mailbox: str, broadcasts: Batch) -> Batch:
        """Return the messages of a mailbox's broadcasts; raise the same errors as `Unfolder.unfold`."""
        audience = audience_of(broadcasts)
        if audience not in self.digests:
            routes = await self._current_routes()
            self._records = routes.records
            edges = await edges_of(audience, broadcasts.topics[0], routes, self._audiences)
            self.digests[audience] = edges.digest
        found = self._unfolders.get(mailbox)
        if found is None:
            found = self._unfolders[mailbox] = Unfolder(self._audiences)
            found.former = lambda: self._agents_of(mailbox)
        return await found.unfold(broadcasts)

    def _agents_of(self, mailbox: str) -> Iterator[AgentSet]:
        record = self._records.get(mailbox)
        if record is not None:
            yield from record.by_subtopic().values()
            yield from record.former()


def _calls(writes: Sequence[FrameWrite]) -> Iterator[list[FrameWrite]]:
    """Give frames their numbers, and yield them in lists, each of a size that one call to the server may have.

    Each list has at most one frame for plain channels.
    """
    numbers: Counter[str] = Counter()
    call: list[FrameWrite] = []
    volume = 0
    for write in writes:
        published = write.mailbox == "" and any(other.mailbox == "" for other in call)
        note = 0 if write.noted is None else len(write.noted.frame) + len(write.noted.note)
        nbytes = len(write.frame) + note + sum(len(channel) + len(data) for channel, data in write.publish)
        if call and (published or volume + nbytes > CALL_BYTES):
            yield call
            call, volume = [], 0
        numbers[write.mailbox] += 1
        write.seq = numbers[write.mailbox]
        call.append(write)
        volume += nbytes
    if call:
        yield call


def _counts(fates: Counter[str]) -> dict[str, int]:
    return {fate: count for fate, count in sorted(fates.items()) if count}
