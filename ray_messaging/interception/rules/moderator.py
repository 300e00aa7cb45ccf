"""Have messages judged by any async callable."""

import asyncio
import inspect
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from hashlib import blake2b
from typing import Any, Literal

import numpy as np

from ray_messaging.common.backoff import MODERATOR_RETRY, Backoff
from ray_messaging.errors import Closed, RuleError
from ray_messaging.interception.rules.rule import ALLOW, SlowRule, Verdict, block, checked
from ray_messaging.interception.rules.support.calls import Calls
from ray_messaging.message import Message

Answer = Verdict | bool | str
OnError = Literal["block", "allow"]

logger = logging.getLogger(__name__)

# What may pass between a message's coming and its verdict, in seconds. Its own call is limited, and whoever is before
# it has a limit, too: a message that waits its turn while others are judged must not fail for that.
NO_LIMIT_S = 30 * 86_400.0
_DIGEST_BYTES = 20  # 80 bits of work to find two payloads with one verdict


class Moderator(SlowRule):
    """Ask an async callable about each message.

    It answers True (or ALLOW) to let a message pass, False or a text (the reason) to block it, or a Verdict; all else,
    None and "" too, is an error. `timeout_s` is what one message's call may take, repeated up to `retries` times where
    it raises; waiting for one of the `concurrency` places does not count. After an error or a timeout the message is
    blocked, or passes with on_error="allow".

    `cache` verdicts are kept (0: none; errors never), the longest unused go first; messages alike that are judged at
    the same time share one call. Alike are those with the same payload: for a callable that looks at ids, channel or
    step, too, pass `key`, a callable from a message to what it depends on, such as `lambda message: (message.from_id,
    message.data)`. Both must pickle, as rules travel to the interceptor.
    """

    time_limit_s = NO_LIMIT_S

    def __init__(
        self,
        judge: Callable[[Message], Awaitable[Answer]],
        *,
        timeout_s: float = 30.0,
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
            raise RuleError(f"key must be a plain function of a message, not {key!r}", rule=name)
        self.timeout_s = check_timeout(timeout_s, name)
        self.concurrency = _check_count("concurrency", concurrency, 1, name)
        self.cache = _check_count("cache", cache, 0, name)
        self.retries = _check_count("retries", retries, 0, name)
        self.on_error = check_on_error(on_error, name)
        self._key = _payload_digest if key is None else key
        self._desk = _Desk(concurrency, timeout_s)

    def at_once(self, message: Message) -> Verdict | None:
        """Return the verdict on a message like this one, if it is kept."""
        if not self.cache:
            return None
        try:
            return self._known(self._key(message))
        except Exception:  # noqa: BLE001 - the user's key: `judge` meets it again, and obeys on_error
            return None

    async def judge(self, message: Message) -> Verdict:
        """Judge one message; never raises but when cancelled."""
        if not self.cache:
            return await self._ask(message)
        try:
            key = self._key(message)
            known = self._known(key)
        except Exception as error:  # noqa: BLE001 - the user's key: fail as they wish
            return self._fail(error)
        if known is not None:
            return known
        flights = self._desk.flights
        flight = flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._ask(message, key), name=f"ray_messaging rule {self.name}")
            flights[key] = flight
            flight.add_done_callback(lambda _: flights.pop(key))
        else:
            self._desk.shared += 1
        return await self._landed(flight)

    async def close(self) -> None:
        """Give up what is being judged."""
        for flight in (flights := list(self._desk.flights.values())):
            flight.cancel()
        if flights:
            await asyncio.wait(flights)
        await self._desk.calls.close()

    def stats(self) -> dict[str, int]:
        """Count messages asked about, answered from the cache or by another's call, failed; and those waiting."""
        desk = self._desk
        return {
            "asked": desk.asked,
            "cached": desk.cached,
            "shared": desk.shared,
            "failed": desk.failed,
            "waiting": desk.waiting,
        }

    def describe(self) -> dict[str, Any]:
        """Return name, kind, settings and counts as JSON."""
        return {
            **super().describe(),
            "timeout_s": self.timeout_s,
            "concurrency": self.concurrency,
            "cache": self.cache,
            "retries": self.retries,
            "on_error": self.on_error,
            "stats": self.stats(),
        }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in {"_desk", "context"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._desk = _Desk(self.concurrency, self.timeout_s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r})"

    def _known(self, key: Hashable) -> Verdict | None:
        desk = self._desk
        verdict = desk.verdicts.get(key)
        if verdict is not None:
            desk.verdicts.move_to_end(key)
            desk.cached += 1
        return verdict

    async def _landed(self, flight: asyncio.Task[Verdict]) -> Verdict:
        """Wait for a call that others may wait for, too: who is cancelled leaves it to them."""
        try:
            return await asyncio.shield(flight)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if not flight.cancelled() or (me is not None and me.cancelling()):
                raise
            return self._fail(Closed("the rule was closed before it answered"))

    async def _ask(self, message: Message, key: Hashable = None) -> Verdict:
        """Have a message judged; a verdict is kept, an error is not."""
        desk = self._desk
        desk.waiting += 1
        desk.asked += 1
        try:
            verdict = await desk.calls.run(self, lambda: self._attempt(message))
        except Exception as error:  # noqa: BLE001 - the user's callable: fail as they wish
            return self._fail(error)
        finally:
            desk.waiting -= 1
        desk.failing = False
        if self.cache:
            desk.verdicts[key] = verdict
            if len(desk.verdicts) > self.cache:
                desk.verdicts.popitem(last=False)
        return verdict

    async def _attempt(self, message: Message) -> Verdict:
        backoff = Backoff(MODERATOR_RETRY)
        for _ in range(self.retries):
            try:
                return as_verdict(await self._judge(message))
            except Exception as error:  # noqa: BLE001 - the last attempt's is raised
                logger.info("rule %r asks again: %s", self.name, type(error).__name__)
            await backoff.sleep()
        return as_verdict(await self._judge(message))

    def _fail(self, error: Exception) -> Verdict:
        desk = self._desk
        desk.failed += 1
        if not desk.failing and self.context is None:  # else the interceptor says it, once
            desk.failing = True  # once for all that fail in a row: a service that is down fails for every message
            then = "passes" if self.on_error == "allow" else "is blocked"
            logger.warning("rule %r fails, what it should judge %s: %s: %s", self.name, then, _kind(error), error)
        return self.count_failure(error)


class _Desk:
    """Hold what a moderator has at hand while it works; it does not travel with the rule."""

    def __init__(self, concurrency: int, timeout_s: float) -> None:
        self.calls = Calls(concurrency, timeout_s)
        self.verdicts: OrderedDict[Hashable, Verdict] = OrderedDict()
        self.flights: dict[Hashable, asyncio.Task[Verdict]] = {}
        self.asked = self.cached = self.shared = self.failed = self.waiting = 0
        self.failing = False


def as_verdict(answer: object) -> Verdict:
    """Read a callable's answer; raise TypeError where it is none."""
    if isinstance(answer, bool | np.bool_):
        return ALLOW if answer else block("the moderator refused it")
    if isinstance(answer, str) and answer:
        return block(answer)
    if isinstance(answer, Verdict):
        return checked(answer)
    raise TypeError(f"{answer!r} is no answer: return True, False, a reason (str) or a Verdict")


def is_async(function: object) -> bool:
    """Tell whether calling this gives something to await."""
    by_class = getattr(type(function), "__call__", None)  # noqa: B004 - not whether it can be called, but how
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(by_class)


def check_name(name: object) -> str:
    """Return a rule's name; raise RuleError where it is none."""
    if not isinstance(name, str) or not name:
        raise RuleError(f"a rule's name must be a text, not {name!r}", rule=repr(name))
    return name


def check_timeout(timeout_s: float, rule: str) -> float:
    """Return a time limit in seconds; raise RuleError where it is none."""
    if isinstance(timeout_s, bool) or not isinstance(timeout_s, int | float) or not 0 < timeout_s < float("inf"):
        raise RuleError(f"timeout_s must be a number of seconds above 0, not {timeout_s!r}", rule=rule)
    return timeout_s


def check_on_error(on_error: object, rule: str) -> OnError:
    """Return what happens to messages on an error; raise RuleError where that is not known."""
    if on_error == "block":
        return "block"
    if on_error == "allow":
        return "allow"
    raise RuleError(f'on_error must be "block" or "allow", not {on_error!r}', rule=rule)


def _check_judge(judge: Any, rule: str) -> Callable[[Message], Awaitable[Answer]]:  # noqa: ANN401 - what a user passes
    if not callable(judge):
        raise RuleError(f"a moderator asks an async function of a message, {judge!r} cannot be called", rule=rule)
    if not is_async(judge):
        raise RuleError(
            f"{judge!r} is not async, and would hold all messages while it works: write it as `async def`, and what "
            "blocks as `await asyncio.to_thread(...)`",
            rule=rule,
        )
    found: Callable[[Message], Awaitable[Answer]] = judge
    return found


def _check_count(what: str, count: object, least: int, rule: str) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or count < least:
        raise RuleError(f"{what} must be a whole number of at least {least}, not {count!r}", rule=rule)
    return count


def _payload_digest(message: Message) -> bytes:
    # Not the payload itself: 10,000 large ones would be kept for their verdicts.
    return blake2b(message.data, digest_size=_DIGEST_BYTES).digest()


def _kind(error: Exception) -> str:
    return type(error).__name__
