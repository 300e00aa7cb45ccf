"""The ways to ask an interceptor: in this process, over its lane, by Ray call, or somebody else's actor by `forward`.

Handles of Ray actors are used as they are, so that nothing here imports Ray.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import numpy as np

from ray_messaging.errors import Closed, ConfigError, Fenced, InterceptorUnavailable, TransitError, ended
from ray_messaging.interception.client.delegated_rules import DelegatedRules
from ray_messaging.interception.client.lane_client import LaneClient
from ray_messaging.interception.server.deferred.deferral import PATIENCE_S
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.interception.server.lane_server import LaneAddress
from ray_messaging.interception.wire.verdicts import FOREIGN, INTERCEPTOR, VerdictClient, VerdictReply, decode_verdicts
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch
from ray_messaging.wire.frames import encode
from ray_messaging.wire.log_notes import Why

logger = logging.getLogger(__name__)

# Where the lane cannot be opened (a firewall that drops packets), it is tried again after so many seconds.
_BY_RAY_S = 30.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5
_GLANCE_S = 0.2  # for an actor to say that it lives: who asks has a server to get back to
# An actor that answers `forward` is asked about so many messages at a time.
_CALLS = 256
# What a Ray handle raises when its actor will not come back; by name, as Ray is not imported here.
_GONE = {"ActorDiedError"}
# What it raises when the user's own code raised: asking again would not help.
_APPLICATION_ERROR = "RayTaskError"


def verdict_client_for(
    interceptor: object, timeout_s: float, exp_id: str | None = None, *, standing: bool = False
) -> VerdictClient:
    """Choose the way to ask an interceptor: ours in this process, ours on Ray, or any actor that answers `forward`.

    Args: exp_id is whose messages are judged: ours on Ray refuses to judge for another experiment. standing: rules may
        be granted, as the server checks under which number they count.
    Raises: ConfigError.
    """
    if isinstance(interceptor, Interceptor):
        return LocalVerdictClient(interceptor)
    if hasattr(interceptor, "forward_batch") and hasattr(interceptor, "lane"):
        return RemoteVerdictClient(interceptor, timeout_s, exp_id, standing=standing)
    if hasattr(interceptor, "forward"):
        return ForeignVerdictClient(interceptor, timeout_s)
    raise ConfigError(
        f"{interceptor!r} cannot intercept messages: pass messaging.interceptor, or a Ray actor that answers "
        "forward(from_id, to_id, msg) -> bool"
    )


class _Asking:
    """Encode a batch by what the rules want, and ask again with payloads where they want those, too."""

    def __init__(self) -> None:
        self._with_payload = False

    async def judge(self, batch: Batch) -> VerdictReply:
        """Judge a batch; a batch asked again is answered as before."""
        verdicts = decode_verdicts(await self._ask(encode(batch, with_payload=self._with_payload)))
        if not verdicts.judged:
            verdicts = await self._insist(batch, patient=False)
        self._with_payload = verdicts.wants_payload
        return verdicts

    async def wait(self, batch: Batch) -> VerdictReply:
        """Return the verdicts of some deferred rows; payloads go along only where the interceptor lost them."""
        verdicts = decode_verdicts(await self._ask(encode(batch, with_payload=False), patient=True))
        if not verdicts.judged:
            verdicts = await self._insist(batch, patient=True)
        return verdicts

    async def _insist(self, batch: Batch, *, patient: bool) -> VerdictReply:
        """Ask again, with payloads; what was not judged must not pass."""
        verdicts = decode_verdicts(await self._ask(encode(batch), patient=patient))
        if not verdicts.judged:
            raise InterceptorUnavailable(
                "the interceptor has the payloads, and gave no verdict, so nothing was sent: look at its actor, then "
                "send again"
            )
        return verdicts

    async def _ask(self, request: bytes, *, patient: bool = False) -> bytes:
        raise NotImplementedError


class LocalVerdictClient(_Asking):
    """Ask an interceptor in this process."""

    way = "local"

    def __init__(self, interceptor: Interceptor) -> None:
        super().__init__()
        self._interceptor = interceptor

    async def _ask(self, request: bytes, *, patient: bool = False) -> bytes:
        answer = self._interceptor.answer(request, patient=patient)
        return answer if isinstance(answer, bytes) else await answer

    async def close(self) -> None:
        """Do nothing."""


async def _persist(attempt: Callable[[], Awaitable[bytes]], timeout_s: float) -> bytes:
    """Repeat an attempt until it succeeds or the time is up; or raise InterceptorUnavailable."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                return await attempt()
        except Exception as error:
            why = getattr(error, "cause", None)  # of an error of Ray's, what the actor raised
            if isinstance(why, ConfigError) and not isinstance(why, TransitError):
                raise why from error
            if isinstance(why, Fenced) and why.name != INTERCEPTOR:  # no successor will answer: all of it is over
                raise why from error
            last = loop.time() + pause > deadline or type(error).__name__ in _GONE
            if last:
                raise _unavailable(error, timeout_s) from error
            logger.info("the interceptor does not answer (%s), asking again", type(error).__name__)
        await asyncio.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _unavailable(error: Exception, timeout_s: float) -> InterceptorUnavailable:
    error = getattr(error, "cause", None) or error  # Ray's text holds the whole traceback
    return InterceptorUnavailable(
        f"the interceptor gave no verdict within {timeout_s:g} s ({type(error).__name__}: {error}), so nothing was "
        "sent: look at its actor, then send again"
    )


class RemoteVerdictClient(_Asking):
    """Ask our interceptor actor: over its lane, or by Ray call where the lane cannot be opened.

    Where it grants its rules over the lane, and they let a batch pass, it is not asked (see `DelegatedRules`).
    """

    def __init__(
        self,
        handle: Any,  # noqa: ANN401 - a Ray actor handle
        timeout_s: float,
        exp_id: str | None = None,
        *,
        standing: bool = False,
    ) -> None:
        super().__init__()
        self._handle = handle
        self._standing = standing
        self._granted: DelegatedRules | None = None
        self._exp_id = exp_id or ""
        self._ours = {} if exp_id is None else {"exp_id": exp_id}
        self._timeout_s = timeout_s
        self._lane: LaneClient | None = None
        self._by_ray_until = 0.0
        self._opening = asyncio.Lock()
        self.way = "lane"

    @property
    def standing(self) -> int:
        """Return how many messages have passed by rules that were granted."""
        return 0 if self._granted is None else self._granted.passed

    async def judge(self, batch: Batch) -> VerdictReply:
        """Judge a batch; a batch asked again is answered as before."""
        if not self._standing:
            return await super().judge(batch)
        if self._granted is None:
            self._granted = DelegatedRules(self._exp_id)
        verdicts = self._granted.judge(batch)
        if verdicts is None:
            asked_at = asyncio.get_running_loop().time()
            verdicts = await super().judge(batch)
            if self._lane is not None:
                self._granted.heard(self._lane, verdicts.standing, asked_at, batch)
        return verdicts

    async def ended(self) -> Closed | None:
        """Return that the experiment has ended, where its interceptor will not come back; None: as far as is known."""
        try:
            async with asyncio.timeout(_GLANCE_S):
                await self._handle.health.remote()
        except Exception as error:  # noqa: BLE001 - all but one say that it may answer later
            return ended(self._exp_id) if self._exp_id and type(error).__name__ in _GONE else None
        return None

    async def _ask(self, request: bytes, *, patient: bool = False) -> bytes:
        try:
            return await self._ask_patiently(request, patient=patient)
        except InterceptorUnavailable as error:
            if self._exp_id and type(error.__cause__).__name__ in _GONE:
                raise ended(self._exp_id, unsent=True) from error.__cause__
            raise

    async def _ask_patiently(self, request: bytes, *, patient: bool) -> bytes:
        lane = self._lane
        limit_s = self._timeout_s + (PATIENCE_S if patient else 0.0)
        if lane is not None:
            try:
                async with asyncio.timeout(limit_s):
                    return await lane.ask(request, patient=patient)
            except TimeoutError as error:
                self._drop(lane)
                raise _unavailable(error, limit_s) from error
            except OSError:  # cut: its successor serves a lane of its own
                self._drop(lane)
        return await _persist(lambda: self._ask_anew(request, patient=patient), limit_s)

    async def _ask_anew(self, request: bytes, *, patient: bool) -> bytes:
        """Ask over the lane that the actor serves now; by Ray call where it cannot be opened."""
        if asyncio.get_running_loop().time() < self._by_ray_until:
            return bytes(await self._handle.forward_batch.remote(request, patient, **self._ours))
        async with self._opening:  # a batch and those who wait may find the lane cut at the same time
            lane = self._lane if self._lane is not None else await self._open()
        if lane is None:
            return bytes(await self._handle.forward_batch.remote(request, patient, **self._ours))
        try:
            return await lane.ask(request, patient=patient)
        except OSError:
            self._drop(lane)
            raise

    async def _open(self) -> LaneClient | None:
        """Open the lane where the actor serves it now; None: it cannot be opened."""
        address = LaneAddress(*await self._handle.lane.remote(**self._ours))
        try:
            # Half of the time: the other half is for the Ray call, if the lane cannot be opened.
            self._lane = await LaneClient.open(address, self._timeout_s / 2)
        except OSError as error:
            self._by_ray_until = asyncio.get_running_loop().time() + _BY_RAY_S
            if self.way == "lane":
                logger.warning("cannot open the verdict lane at %r (%s): asking by Ray calls, slower", address, error)
            self.way = "ray"
            return None
        self.way = "lane"
        return self._lane

    def _drop(self, lane: LaneClient) -> None:
        """Drop a lane, unless another one has taken its place already."""
        lane.close()
        if self._lane is lane:
            self._lane = None

    async def close(self) -> None:
        """Drop the lane, and what was granted over it."""
        if self._granted is not None:
            await self._granted.close()
        if self._lane is not None:
            self._drop(self._lane)


class ForeignVerdictClient:
    """Ask a user's own actor, one `forward` per message, where both ids are given: as AgentSociety does.

    It gets the payload as it does there: JSON text.
    """

    way = "forward"

    def __init__(self, handle: Any, timeout_s: float) -> None:  # noqa: ANN401 - a Ray actor handle
        self._handle = handle
        self._timeout_s = timeout_s

    async def judge(self, batch: Batch) -> VerdictReply:
        """Ask for each message; what `forward` refuses is blocked."""
        from_ids, to_ids = batch.from_ids.tolist(), batch.to_ids.tolist()
        rows = [row for row in range(len(batch)) if from_ids[row] is not None and to_ids[row] is not None]
        answers: list[bytes] = []
        for low in range(0, len(rows), _CALLS):
            answers += await self._forward_all(batch, rows[low : low + _CALLS])
        refused = [
            Why("forward", reason.decode(), np.array([row], "<u4").tobytes())
            for row, reason in zip(rows, answers, strict=True)
            if reason
        ]
        return VerdictReply(FOREIGN, blocked=tuple(refused))

    wait = judge

    async def _forward_all(self, batch: Batch, rows: list[int]) -> list[bytes]:
        """Ask about some messages in order, but at the same time, as AgentSociety's many senders do."""
        calls = [asyncio.ensure_future(_persist(partial(self._forward, batch, row), self._timeout_s)) for row in rows]
        try:
            return await asyncio.gather(*calls)
        finally:
            for call in calls:
                call.cancel()

    async def _forward(self, batch: Batch, row: int) -> bytes:
        """Return why a message is refused; nothing where it may pass."""
        # As AgentSociety's messager writes it: who looks for '"type": "news"' in it must find it.
        text = json.dumps(Message("", batch, row).payload)
        try:
            passed = await self._handle.forward.remote(batch.from_ids[row], batch.to_ids[row], text)
        except Exception as error:
            if not any(base.__name__.startswith(_APPLICATION_ERROR) for base in type(error).__mro__):
                raise
            last = str(error).strip().rpartition("\n")[2]  # Ray's text holds the whole traceback
            logger.warning("the interceptor's forward failed on a message, which is blocked: %s", last)
            return f"the interceptor failed: {last or type(error).__name__}".encode(errors="replace")
        return b"" if passed else b"the interceptor refused it"

    async def close(self) -> None:
        """Do nothing."""
