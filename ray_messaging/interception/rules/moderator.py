"""A rule that asks an async function about each message."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from hashlib import blake2b
from typing import Any, Literal, TypeVar

import numpy as np

from ray_messaging.common.awaitables import is_async
from ray_messaging.common.backoff import MODERATOR_RETRY, Backoff
from ray_messaging.default_limits_and_leases import MODERATOR_TIMEOUT_S
from ray_messaging.errors import Closed, RuleError
from ray_messaging.interception.interceptor.watchdog import RuleCalls
from ray_messaging.interception.rules.checks import check_choice, check_count, check_name, check_positive
from ray_messaging.interception.rules.rule import ALLOW, Rule, SlowRule, Verdict, block, checked, text_of
from ray_messaging.message import Message

T = TypeVar("T")
Answer = Verdict | bool | str
OnError = Literal["block", "allow"]

logger = logging.getLogger(__name__)

# How long a cancelled call may take to clean up, in seconds. A call that takes longer is taken for one that never ends.
_GRACE_S = 1.0
# The time limit from a message's arrival to its verdict, in seconds. It is long, because a message must not fail while
# it waits for other messages to be judged. Each call has its own, shorter limit.
NO_LIMIT_S = 30 * 86_400.0
_DIGEST_BYTES = 20  # finding two payloads with the same digest takes about 2**80 tries


class ModeratorCalls:
    """Calls of a moderator. At most `concurrency` calls run at a time, and each may take at most `timeout_s` seconds.

    The time in which a call waits for another call to end is not limited. A cancelled call that has not ended yet is
    abandoned. If `concurrency` abandoned calls run, a further call waits up to a second for one of them to end, and
    then fails. So there are never more than twice as many calls as `concurrency`.
    """

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self.concurrency = concurrency
        self.timeout_s = timeout_s
        self._places = asyncio.Semaphore(concurrency)
        self._calls = RuleCalls()

    async def run(self, rule: Rule, call: Callable[[], Awaitable[T]]) -> T:
        """Make a call of a rule, and return its result.

        If `concurrency` calls are running, wait until one of them has ended. The caller of the ended call first goes on
        up to its next `await`. Then the waiting call begins.

        Raises: the call's own error; TimeoutError if the call takes too long, or if too many abandoned calls still run.
        """
        async with self._places:
            await self._wait_for_abandoned()
            found = await self._calls.run(rule, call, self.timeout_s, "answer")
        if not isinstance(found, BaseException):
            return found
        if isinstance(found, Exception):
            raise found
        # A CancelledError would look like a cancellation of the caller, and an error such as SystemExit would end the
        # process. So a RuntimeError is raised instead.
        cancelled = isinstance(found, asyncio.CancelledError)
        why = "was cancelled from within" if cancelled else f"would have ended the process: {found!r}"
        raise RuntimeError(f"the call {why}")

    async def _wait_for_abandoned(self) -> None:
        abandoned = self._calls.abandoned
        while len(abandoned) >= self.concurrency:
            left_s = self._calls.abandoned_at + _GRACE_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                raise TimeoutError(
                    f"{len(abandoned)} earlier calls still run, although they were cancelled: let CancelledError pass "
                    "(an `except:` without a class catches it)"
                )
            await asyncio.wait(abandoned, timeout=left_s, return_when=asyncio.FIRST_COMPLETED)

    def __reduce__(self) -> tuple[Any, ...]:
        return ModeratorCalls, (self.concurrency, self.timeout_s)  # the copy has no running calls

    async def close(self) -> None:
        """Wait up to a second for cancelled calls to end."""
        await self._calls.close(_GRACE_S)


class Moderator(SlowRule):
    """Ask an async callable about each message.

    The callable returns True (or ALLOW) to pass a message, False or a str (the reason) to block it, or a `Verdict`. Any
    other answer, None and "" included, is an error. After an error or a timeout, `on_error` decides.

    Verdicts are cached by `key`, which is the payload by default; errors are not cached. Messages with the same key
    that are judged at the same time share one call.

    Args:
        judge: the callable, which takes one `Message`. `judge` and `key` must be picklable, because rules are sent to
            the process that applies them.
        timeout_s: how many seconds the calls about one message may take together, retries included. The time in which
            a message waits because `concurrency` other calls are under way does not count.
        concurrency: how many calls may be under way at a time.
        cache: how many verdicts to keep; 0: none. If there are more, those that were not used for longest are dropped.
        key: a function that returns the part of a message on which its verdict depends, as a hashable. By default that
            is the payload. If ids, channel or step matter, too, pass for example
            `lambda message: (message.from_id, message.data)`.
        on_error: the verdict after an error or a timeout: "block" or "allow".
        retries: how often a call that has failed may be made again.
        name: the rule's name.

    Raises: RuleError if an argument is not valid.
    """

    time_limit_s = NO_LIMIT_S
    _described = ("timeout_s", "concurrency", "cache", "retries", "on_error")

    def __init__(
        self,
        judge: Callable[[Message], Awaitable[Answer]],
        *,
        timeout_s: float = MODERATOR_TIMEOUT_S,
        concurrency: int = 16,
        cache: int = 10_000,
        key: Callable[[Message], Hashable] | None = None,
        on_error: OnError = "block",
        retries: int = 0,
        name: str = "moderator",
    ) -> None:
        self.name = check_name(name)
        self._judge = _check_judge(judge, name)
        if key is not None and (not callable(key) or is_async(key)):
            why = "it is async" if callable(key) else "it is no function"
            raise RuleError(f"key={key!r} must be a plain function of a message: {why}", rule=name)
        self.timeout_s = check_positive("timeout_s", timeout_s, name)
        self.concurrency = check_count("concurrency", concurrency, 1, name)
        self.cache = check_count("cache", cache, 0, name)
        self.retries = check_count("retries", retries, 0, name)
        self.on_error = check_choice("on_error", on_error, ("block", "allow"), name)
        self._key = _payload_digest if key is None else key
        self._work = _Work(concurrency, timeout_s)

    def at_once(self, message: Message) -> Verdict | None:
        """Return the cached verdict on a message, or None if there is none."""
        if not self.cache:
            return None
        try:
            return self._known(self._key(message))
        except Exception:  # noqa: BLE001 - raised by `key`: `judge` calls it again, and obeys on_error
            return None

    async def judge(self, message: Message) -> Verdict:
        """Return the verdict on one message. If the callable raises an error, `on_error` decides.

        Raises: CancelledError if the wait is cancelled, and no other error.
        """
        if not self.cache:
            return await self._ask(message)
        try:
            key = self._key(message)
            known = self._known(key)
        except Exception as error:  # noqa: BLE001 - raised by `key`: on_error decides
            return self._fail(error)
        if known is not None:
            return known
        running = self._work.running
        call = running.get(key)
        if call is None:
            call = asyncio.create_task(self._ask(message, key), name=f"ray_messaging rule {self.name}")
            running[key] = call
            call.add_done_callback(lambda _: running.pop(key))
        else:
            self._work.shared += 1
        return await self._shared(call)

    async def close(self) -> None:
        """Cancel the running calls, and wait up to a second for cancelled calls to end.

        With `cache=0` this method has no call to cancel, because each call then belongs to the check of one message,
        and ends with this check.
        """
        for call in (running := list(self._work.running.values())):
            call.cancel()
        if running:
            await asyncio.wait(running)
        await self._work.calls.close()

    def stats(self) -> dict[str, int]:
        """Return numbers of messages.

        - `asked`: messages that needed a call of the callable;
        - `cached`: messages that got the cached verdict of an earlier call;
        - `shared`: messages that got the verdict of a call that was under way for an equal message;
        - `failed`: messages about which there was no valid answer;
        - `waiting`: messages about which a call is waiting or running now.
        """
        work = self._work
        return {name: getattr(work, name) for name in ("asked", "cached", "shared", "failed", "waiting")}

    def describe(self) -> dict[str, Any]:
        """Return the rule's name, kind and settings, and the counts of `stats`, as JSON values."""
        return {**super().describe(), "stats": self.stats()}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"context": None, "_work": _Work(self.concurrency, self.timeout_s)}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def _known(self, key: Hashable) -> Verdict | None:
        work = self._work
        verdict = work.verdicts.get(key)
        if verdict is not None:
            work.verdicts.move_to_end(key)
            work.cached += 1
        return verdict

    async def _shared(self, call: asyncio.Task[Verdict]) -> Verdict:
        """Wait for a call that several messages may share. If this message's wait is cancelled, the call goes on."""
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not call.cancelled() or (me is not None and me.cancelling()):
                raise
            return self._fail(
                Closed(f"the rule {self.name!r} was closed before it gave a verdict: send the message again")
            )

    async def _ask(self, message: Message, key: Hashable = None) -> Verdict:
        work = self._work
        work.waiting += 1
        work.asked += 1
        try:
            verdict = await work.calls.run(self, lambda: self._attempt(message))
        except Exception as error:  # noqa: BLE001 - raised by the callable: on_error decides
            return self._fail(error)
        finally:
            work.waiting -= 1
        work.failing = False
        if self.cache:
            work.verdicts[key] = verdict
            if len(work.verdicts) > self.cache:
                work.verdicts.popitem(last=False)
        return verdict

    async def _attempt(self, message: Message) -> Verdict:
        backoff = Backoff(MODERATOR_RETRY)
        for _ in range(self.retries):
            try:
                return as_verdict(await self._judge(message))
            except Exception as error:  # noqa: BLE001 - the error of the last attempt is raised
                logger.info("rule %r asks again about a message, after this error: %s", self.name, type(error).__name__)
            await backoff.sleep()
        return as_verdict(await self._judge(message))

    def _fail(self, error: Exception) -> Verdict:
        work = self._work
        work.failed += 1
        if not work.failing and self.context is None:  # an interceptor (`context`) logs failures itself
            # Successive failures are logged once, because a service that is down fails for every message.
            work.failing = True
            then = "passes" if self.on_error == "allow" else "is blocked"
            logger.warning(
                "rule %r fails, so each message that it should judge %s: %s", self.name, then, text_of(error)
            )
        return self.count_failure(error)


class _Work:
    """The calls of one moderator, its cache of verdicts, and the counters that `Moderator.stats` returns."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self.calls = ModeratorCalls(concurrency, timeout_s)
        self.verdicts: OrderedDict[Hashable, Verdict] = OrderedDict()
        self.running: dict[Hashable, asyncio.Task[Verdict]] = {}
        self.asked = self.cached = self.shared = self.failed = self.waiting = 0
        self.failing = False


def as_verdict(answer: object) -> Verdict:
    """Return the verdict that a moderator's function means by its answer.

    True passes the message, False or a text blocks it, and a `Verdict` is returned as it is. Raises TypeError for
    anything else.
    """
    if isinstance(answer, bool | np.bool_):
        return ALLOW if answer else block("the moderator refused it")
    if isinstance(answer, str) and answer:
        return block(answer)
    if isinstance(answer, Verdict):
        return checked(answer)
    raise TypeError(f"the moderator returned {answer!r}: it must return True, False, a reason (str) or a Verdict")


def _check_judge(judge: Any, rule: str) -> Callable[[Message], Awaitable[Answer]]:  # noqa: ANN401 - given by a user
    if not callable(judge):
        raise RuleError(
            f"{judge!r} cannot be called: give the moderator an async function that takes a message", rule=rule
        )
    if not is_async(judge):
        raise RuleError(
            f"{judge!r} is not async, so all messages would wait for each of its calls: write `async def`, and call "
            "blocking functions by `await asyncio.to_thread(...)`",
            rule=rule,
        )
    found: Callable[[Message], Awaitable[Answer]] = judge
    return found


def _payload_digest(message: Message) -> bytes:
    # The key is a digest of the payload, because with payloads as keys the cache would keep 10,000 large payloads.
    return blake2b(message.data, digest_size=_DIGEST_BYTES).digest()
