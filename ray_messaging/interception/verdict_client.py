"""Verdict clients, by which a messager asks an interceptor for verdicts.

There is a class of clients for each kind of interceptor: an interceptor in this process, the actor of this library
(over its verdict lane or by Ray calls), or a foreign actor, which has only `forward`. Handles of Ray actors are only
called, so this file does not import Ray.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ray_messaging.common.backoff import INTERCEPTOR_RETRY, LANE_RETRY, Backoff
from ray_messaging.common.texts import error_in_words
from ray_messaging.errors import Closed, ConfigError, Fenced, InterceptorUnavailable, TransitError, ended
from ray_messaging.interception.delegated_rules import DelegatedRules
from ray_messaging.interception.lane import JUDGE, WAIT, LaneAddress, LaneClient
from ray_messaging.interception.verdicts import (
    FOREIGN,
    INTERCEPTOR,
    NOBODY,
    PATIENCE_S,
    BatchVerdict,
    VerdictReply,
    decode_verdicts,
)
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.wire.frames import encode

if TYPE_CHECKING:
    from ray_messaging.interception.interceptor.interceptor import Interceptor

logger = logging.getLogger(__name__)

T = TypeVar("T")

_GLANCE_S = 0.2  # the longest wait until an actor answers whether its server is lost
_ADDRESS_S = 5.0  # the longest wait until an actor sends the address of its lane, if a lane was open before
_CALLS = 256  # at most this many `forward` calls to a foreign actor run at the same time
# Ray's error for an actor that will not come back. It is given by name, because this file does not import Ray.
_GONE = {"ActorDiedError"}
# Ray's error for an exception in the code of a foreign actor. Asking again would not help.
_APPLICATION_ERROR = "RayTaskError"


class VerdictClient:
    """A messager's access to an interceptor. `route` names the kind of access, as `stats()` shows it."""

    route: str

    async def judge(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch. The caller must not change the verdicts.

        Raises: InterceptorUnavailable if there is no answer in time, Closed if the experiment has ended, FrameError if
        the answer is not valid.
        """
        raise NotImplementedError

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return verdicts on rows that wait for slow rules, once a row has a verdict, or after PATIENCE_S seconds.

        Raises: InterceptorUnavailable if there is no answer in time, Closed if the experiment has ended, FrameError if
        the answer is not valid.
        """
        return await self.judge(batch)

    async def pass_whole(self, broadcasts: Batch) -> BatchVerdict | None:  # noqa: ARG002 - for subclasses
        """Return a verdict that lets broadcasts pass to all their hearers.

        Return None if there are, or may be, rules that must judge the broadcasts.
        """
        return None

    @property
    def judges_nothing(self) -> bool:
        """Return whether this client knows that there are no rules now. If it returns False, there may be rules."""
        return False

    async def outdated(self, *, successor: bool) -> None:  # noqa: ARG002 - for subclasses
        """Forget what this client has from the interceptor, because the server has refused this client's verdicts.

        A later call of `judge` then gets valid verdicts.

        Args: with `successor`, another interceptor has taken over, and this client must also close its connection to
        the earlier interceptor.
        """
        await self.close()

    async def close(self) -> None:
        """Close the connection to the interceptor."""


def verdict_client_for(
    interceptor: object, timeout_s: float, exp_id: str | None = None, *, delegate_rules: bool = False
) -> VerdictClient:
    """Return the client that asks an interceptor for verdicts.

    Args:
        interceptor: an `Interceptor` in this process, this library's actor, or any actor with a method `forward`.
        exp_id: the experiment of the messages; this library's actor refuses messages of another experiment.
        delegate_rules: whether the client may apply a copy of the rules itself. This is safe only if the server checks
            that the copy is not outdated.

    Raises: ConfigError if `interceptor` is none of these, or if it is an `Interceptor` that has a rule for whole steps,
    but is not used with steps.
    """
    if hasattr(interceptor, "forward_batch") and hasattr(interceptor, "lane"):
        return RemoteVerdictClient(interceptor, timeout_s, exp_id, delegate_rules=delegate_rules)
    from ray_messaging.interception.interceptor.interceptor import Interceptor  # noqa: PLC0415 - groups do not need it

    if isinstance(interceptor, Interceptor):
        if interceptor.rules.whole and not interceptor.supervised:
            raise ConfigError(
                f"rule {interceptor.rules.whole[0].name!r} judges whole steps, but this interceptor judges no steps, "
                "so the rule would never be called: pass it to "
                "Messaging.start(..., steps=Steps(), rules=[...])"
            )
        return LocalVerdictClient(interceptor)
    if hasattr(interceptor, "forward"):
        return ForeignVerdictClient(interceptor, timeout_s)
    raise ConfigError(
        f"{interceptor!r} cannot intercept messages: pass messaging.interceptor, or a Ray actor that answers "
        "forward(from_id, to_id, msg) -> bool"
    )


class PassAll(VerdictClient):
    """The client of a messager without an interceptor.

    It lets all messages pass. If the experiment does have an interceptor, the server refuses the messages.
    """

    route = "none"
    judges_nothing = True

    async def judge(self, batch: Batch) -> BatchVerdict:  # noqa: ARG002 - every client gets it
        """Return a verdict that blocks nothing."""
        return BatchVerdict(epoch=NOBODY)

    async def pass_whole(self, broadcasts: Batch) -> BatchVerdict | None:
        """Return a verdict that blocks nothing, because there is no interceptor."""
        return await self.judge(broadcasts)


class LocalVerdictClient(VerdictClient):
    """The client of an interceptor in this process. It passes batches as objects, without encoding them."""

    route = "local"

    def __init__(self, interceptor: "Interceptor") -> None:
        self._interceptor = interceptor
        self._last: tuple[Batch, BatchVerdict] | None = None

    async def judge(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch. Two successive calls with the same batch object return the same verdicts."""
        if self._last is None or self._last[0] is not batch:
            self._last = batch, await self._interceptor.judge(batch)
        return self._last[1]

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return verdicts on rows that wait for slow rules, once a row has a verdict, or after PATIENCE_S seconds."""
        answer = self._interceptor.answer(batch, patient=True)
        return decode_verdicts(answer if isinstance(answer, bytes) else await answer).batch_verdict(batch.rows)

    @property
    def judges_nothing(self) -> bool:
        """Return whether there are no rules now."""
        return not self._interceptor.rules.now

    async def pass_whole(self, broadcasts: Batch) -> BatchVerdict | None:
        """Return a verdict that lets broadcasts pass to all their hearers; None if rules must judge the broadcasts."""
        # Judging an empty batch makes the interceptor use the rules of the step of `broadcasts`.
        await self.judge(broadcasts.take(np.zeros(0, np.intp)))
        return None if self._interceptor.rules.each else await self.judge(broadcasts)


async def _retry(attempt: Callable[[], Awaitable[T]], timeout_s: float) -> T:
    """Call `attempt` until it succeeds, for at most `timeout_s`, and return its result.

    Raises: InterceptorUnavailable if no attempt succeeds, or if the actor is gone for good; Closed, Fenced or
    ConfigError at once, because further attempts would fail, too.
    """
    deadline = asyncio.get_running_loop().time() + timeout_s
    backoff = Backoff(INTERCEPTOR_RETRY, deadline=deadline)
    reason: Exception | None = None
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except Exception as error:
            why = getattr(error, "cause", None)  # Ray's error has the actor's exception as its cause
            if (
                (isinstance(why, ConfigError) and not isinstance(why, TransitError))
                # Another start of the experiment has taken over.
                or (isinstance(why, Fenced) and why.name != INTERCEPTOR)
                or isinstance(why, Closed)  # the experiment has ended
            ):
                raise why from error
            if isinstance(error, Closed):  # Ray has ended in this process
                raise
            if not isinstance(error, TimeoutError):
                reason = error  # the last attempt may end with a TimeoutError, which says less than this error
            if backoff.exhausted or type(error).__name__ in _GONE:
                raise _unavailable(reason or error, timeout_s) from error
            logger.info("the interceptor does not answer (%s), asking again", type(error).__name__)
        await backoff.sleep()


def _unavailable(error: Exception, timeout_s: float) -> InterceptorUnavailable:
    # Ray's own text has the whole traceback, so the text of the cause is used instead.
    error = getattr(error, "cause", None) or error
    return InterceptorUnavailable(
        f"the interceptor did not say within {timeout_s:g} s whether these messages may be sent "
        f"({error_in_words(error)}), so nothing was sent: look at the log of its actor, then send again"
    )


class RemoteVerdictClient(VerdictClient):
    """The client of this library's interceptor actor.

    It asks over a socket of the actor (the verdict lane), or by Ray calls if the socket cannot be opened. Payloads are
    sent only if the rules need them. If the client has a copy of the rules, and this copy lets a whole batch pass, the
    actor is not asked about the batch (see `DelegatedRules`).
    """

    def __init__(
        self,
        handle: Any,  # noqa: ANN401 - a Ray actor handle
        timeout_s: float,
        exp_id: str | None = None,
        *,
        delegate_rules: bool = False,
    ) -> None:
        self._handle = handle
        self._exp_id = exp_id or ""
        self._delegated_rules = DelegatedRules(self._exp_id) if delegate_rules else None
        self._options = {} if exp_id is None else {"exp_id": exp_id}
        self._timeout_s = timeout_s
        self._with_payload = False
        self._lane: LaneClient | None = None
        self._address: LaneAddress | None = None  # the address of the lane that was last opened
        self._by_ray_until = 0.0
        self._opening = asyncio.Lock()
        self.route = "lane"

    @property
    def delegated(self) -> int:
        """Return how many messages this client has passed by its copy of the rules, without asking the interceptor."""
        return 0 if self._delegated_rules is None else self._delegated_rules.passed

    @property
    def judges_nothing(self) -> bool:
        """Return whether this client knows that there are no rules now.

        It can know this only while it has a copy of the rules.
        """
        return self._delegated_rules is not None and self._delegated_rules.empty

    async def judge(self, batch: Batch) -> BatchVerdict:
        """Return the verdicts on a batch. The interceptor gives the same verdicts on a repeated batch."""
        if self._delegated_rules is not None and batch.rows:  # `pass_whole` sends an empty batch to the interceptor
            passed = self._delegated_rules.judge(batch)
            if passed is not None:
                return passed
        asked_at = asyncio.get_running_loop().time()
        verdicts = await self._verdicts(batch, with_payload=self._with_payload)
        self._with_payload = verdicts.wants_payload
        if self._delegated_rules is not None and self._lane is not None:
            self._delegated_rules.heard(self._lane, verdicts.snapshot, asked_at, batch)
        return verdicts.batch_verdict(batch.rows)

    async def wait(self, batch: Batch) -> BatchVerdict:
        """Return verdicts on rows that wait for slow rules, once a row has a verdict, or after PATIENCE_S seconds.

        The interceptor already has the payloads. They are sent again only if the interceptor has lost them.
        """
        return (await self._verdicts(batch, with_payload=False, patient=True)).batch_verdict(batch.rows)

    async def pass_whole(self, broadcasts: Batch) -> BatchVerdict | None:
        """Return a verdict that lets broadcasts pass to all their hearers.

        Return None unless this client knows that there are no rules.
        """
        rules = self._delegated_rules
        if rules is None:
            return None
        if not rules.held:
            await self.judge(broadcasts.take(np.zeros(0, np.intp)))
            await rules.fetched()
        return rules.judge(broadcasts) if rules.empty else None

    async def _verdicts(self, batch: Batch, *, with_payload: bool, patient: bool = False) -> VerdictReply:
        for payloads in dict.fromkeys((with_payload, True)):
            request = encode(batch, with_payload=payloads)
            verdicts = decode_verdicts(await self._ask(request, patient=patient))
            if verdicts.judged:
                return verdicts
        raise InterceptorUnavailable(  # a message without a verdict must not pass, so its send fails
            "the interceptor got the payloads, but gave no verdict, so nothing was sent: look at the log of its actor, "
            "then send again"
        )

    async def ended(self) -> Closed | None:
        """Return a Closed error if the interceptor or a server is known to be lost for good, otherwise None."""
        try:
            async with asyncio.timeout(_GLANCE_S):
                lost = await self._handle.lost_server.remote()
        except Closed as error:  # Ray has ended in this process
            return error
        except Exception as error:  # noqa: BLE001 - after any other error the actor may answer later
            return ended(self._exp_id) if self._exp_id and type(error).__name__ in _GONE else None
        return None if lost is None else Closed(lost)

    async def _ask(self, request: bytes, *, patient: bool) -> bytes:
        """Return the interceptor's answer to a request; raise Closed if the experiment has ended.

        Args: with `patient`, the request is about rows that wait for slow rules. The interceptor may then answer up to
        PATIENCE_S seconds later.
        """
        lane = self._lane
        limit_s = self._timeout_s + (PATIENCE_S if patient else 0.0)
        if lane is not None:
            try:
                async with asyncio.timeout(limit_s):
                    return await lane.ask(request, WAIT if patient else JUDGE)
            except TimeoutError as error:
                self._drop(lane)
                raise _unavailable(error, limit_s) from error
            except OSError:  # the connection is lost; if the interceptor has died, its successor has another lane
                self._drop(lane)
        try:
            return await _retry(lambda: self._ask_anew(request, patient=patient), limit_s)
        except InterceptorUnavailable as error:
            if self._exp_id and type(error.__cause__).__name__ in _GONE:
                raise ended(self._exp_id, unsent=True) from error.__cause__
            raise

    async def _ask_anew(self, request: bytes, *, patient: bool) -> bytes:
        """Ask over a new connection to the interceptor, or by a Ray call if no connection can be opened."""
        if asyncio.get_running_loop().time() < self._by_ray_until:
            return bytes(await self._handle.forward_batch.remote(request, patient, **self._options))
        async with self._opening:  # of all requests that have lost the lane, only one opens a new lane
            lane = self._lane if self._lane is not None else await self._open()
        if lane is None:
            return bytes(await self._handle.forward_batch.remote(request, patient, **self._options))
        try:
            return await lane.ask(request, WAIT if patient else JUDGE)
        except OSError:
            self._drop(lane)
            # This may be the lane of a fenced interceptor, which accepts connections and answers nothing.
            self._address = None
            raise

    async def _open(self) -> LaneClient | None:
        """Open the verdict lane to the interceptor's actor; return None if the actor's socket cannot be reached.

        If a lane was open before, its address is tried first. After a failure of the network, this address can often be
        reached sooner than Ray, which pauses for long between its attempts to connect. If the address does not answer,
        the actor is asked for its present address by a Ray call. If Ray does not answer either, this method raises
        TimeoutError, and the caller tries again.
        """
        before = self._address
        if before is not None:
            with suppress(OSError):
                self._lane = await LaneClient.open(before, self._timeout_s / 2)
                return self._lane
        async with asyncio.timeout(None if before is None else _ADDRESS_S):
            address = LaneAddress(*await self._handle.lane.remote(**self._options))
        try:
            # Opening the lane may take half of the time limit. If it fails, the other half is left for a Ray call.
            self._lane = await LaneClient.open(address, self._timeout_s / 2)
        except OSError as error:
            self._by_ray_until = asyncio.get_running_loop().time() + LANE_RETRY.first_s
            if self.route == "lane":
                logger.warning(
                    "cannot open the interceptor's socket (the verdict lane) at %r (%s), so the verdicts of the rules "
                    "are asked for by Ray calls, which are slower",
                    address,
                    error,
                )
            self.route = "ray"
            return None
        self.route, self._address = "lane", address
        return self._lane

    def _drop(self, lane: LaneClient) -> None:
        """Close a connection to the interceptor, and forget it unless another connection has replaced it."""
        lane.close()
        if self._lane is lane:
            self._lane = None

    async def outdated(self, *, successor: bool) -> None:
        """Drop the copy of the rules, because the server has refused a verdict by these rules.

        If another interceptor has taken over (`successor`), also close the connection to the old one. If only the rules
        have changed, the connection stays open, so that the senders, which all ask again at about the same time, need
        not open new connections.
        """
        if successor:
            self._address = None  # the lane of the earlier interceptor may still be open
            await self.close()
        elif self._delegated_rules is not None:
            self._delegated_rules.drop()

    async def close(self) -> None:
        """Close the connection to the interceptor, and drop the copy of the rules."""
        if self._delegated_rules is not None:
            await self._delegated_rules.close()
        if self._lane is not None:
            self._drop(self._lane)


class ForeignVerdictClient(VerdictClient):
    """The client of a foreign actor, which has a method `forward` as in AgentSociety.

    It calls `forward` for each message that has a from_id and a to_id. All other messages pass.
    """

    route = "forward"

    def __init__(self, handle: Any, timeout_s: float) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self._timeout_s = timeout_s

    async def judge(self, batch: Batch) -> BatchVerdict:
        """Return verdicts that block the messages that `forward` refuses.

        `forward` is called for each message that has a from_id and a to_id.
        """
        from_ids, to_ids = batch.from_ids.tolist(), batch.to_ids.tolist()
        rows = [row for row in range(len(batch)) if from_ids[row] is not None and to_ids[row] is not None]
        answers: list[bytes] = []
        for low in range(0, len(rows), _CALLS):
            answers += await self._forward_all(batch, rows[low : low + _CALLS])
        refused = {row: ("forward", reason.decode()) for row, reason in zip(rows, answers, strict=True) if reason}
        return BatchVerdict(refused, epoch=FOREIGN)

    async def _forward_all(self, batch: Batch, rows: list[int]) -> list[bytes]:
        """Return, for each of `rows`, why its message is refused, or b"" if it may pass.

        The calls of `forward` are begun in order, and awaited together, so that they can run at the same time.
        """
        calls = [asyncio.ensure_future(_retry(partial(self._forward, batch, row), self._timeout_s)) for row in rows]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def _forward(self, batch: Batch, row: int) -> bytes:
        """Return why a message is refused, or b"" if it may pass."""
        # The text is exactly the one that AgentSociety's messager makes, because the code of actors may look in it for
        # parts such as '"type": "news"'.
        text = json.dumps(Message("", batch, row).payload)
        try:
            passed = await self._handle.forward.remote(batch.from_ids[row], batch.to_ids[row], text)
        except Exception as error:
            if not any(base.__name__.startswith(_APPLICATION_ERROR) for base in type(error).__mro__):
                raise
            # The text of Ray's error is a whole traceback. Its last line says what went wrong.
            last = str(error).strip().rpartition("\n")[2]
            logger.warning("the interceptor's forward failed on a message, so the message is blocked: %s", last)
            return f"the interceptor failed: {last or type(error).__name__}".encode(errors="replace")
        return b"" if passed else b"the interceptor refused it"
