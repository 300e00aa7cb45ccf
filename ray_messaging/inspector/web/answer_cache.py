"""Cache of the answers that a source gives to the pages. Answers are computed in threads, and shared by all pages."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from ray_messaging.inspector.sources.live_control import LiveControl
from ray_messaging.inspector.sources.log_rows import RunFacts

T = TypeVar("T")

_THREADS = 4
_LOOK_S = 1.0
_WAITING = 32  # how many questions and changes may be under way in threads; further ones wait


@dataclass(slots=True)
class _Answer:
    """A value, the time `at` from which its age is counted, and the task that computes a new one (None: no task)."""

    value: Any = None
    at: float = float("-inf")
    coming: "asyncio.Task[Any] | None" = None


class AnswerCache:
    """A cache of the answers that a source, such as a run's log, gives to the pages.

    No call blocks the event loop. Pages that ask for the same answer at the same time share one computation.
    """

    def __init__(self, source: RunFacts, control: LiveControl | None = None) -> None:
        self.source = source
        self.control = control
        self._answers: dict[str, _Answer] = {}
        self._threads = ThreadPoolExecutor(_THREADS, "ray_messaging-inspector")
        self._changes = ThreadPoolExecutor(_THREADS, "ray_messaging-inspector-control")
        self._room = asyncio.Semaphore(_WAITING)

    async def shared(self, key: str, question: Callable[[], T], max_age_s: float) -> T:
        """Return the answer to a question that all pages share under the name `key`.

        The answer may be `max_age_s` seconds old, or older if its computation took long. If the function `question`
        raises an error, this raises the same error.
        """
        answer = self._answers.setdefault(key, _Answer())
        if answer.coming is None:
            if time.monotonic() - answer.at <= max_age_s:
                return cast(T, answer.value)
            answer.coming = asyncio.create_task(self._renew(answer, question), name=f"ray_messaging inspector {key}")
        return cast(T, await asyncio.shield(answer.coming))

    async def _renew(self, answer: _Answer, question: Callable[[], Any]) -> Any:  # noqa: ANN401 - the question's
        began = time.monotonic()
        try:
            answer.value = await self.ask(question)
            # An answer's age is counted from a later time, so that the answer is used for at least three times as long
            # as its computation took. So the computation of a slow answer runs for at most a fourth of the time.
            answer.at = time.monotonic() + 3 * (time.monotonic() - began)
        finally:
            answer.coming = None
        return answer.value

    async def ask(self, question: Callable[..., T], *arguments: object) -> T:
        """Call the function `question` in a thread, for one web page only; return its result, or raise its error."""
        async with self._room:
            return await asyncio.get_running_loop().run_in_executor(self._threads, question, *arguments)

    async def change(self, call: Callable[..., T], *arguments: object) -> T:
        """Make a change in a thread, and return its result. All shared answers are outdated afterwards."""
        async with self._room:
            done = await asyncio.get_running_loop().run_in_executor(self._changes, call, *arguments)
        for answer in self._answers.values():
            answer.at = float("-inf")
        return done

    async def follow(self) -> None:
        """If the experiment has ended, use from now on the source that takes the place of the live one."""
        source = self.source
        found = await self.shared("ended", source.ended, _LOOK_S)
        if found is not None and self.source is source:
            found.title = source.title
            self.source, self.control, self._answers = found, None, {}

    async def close(self) -> None:
        """Close the control, if there is one, and end the threads, without waiting for questions under way."""
        if self.control is not None:
            await asyncio.to_thread(self.control.close)
        self._changes.shutdown(wait=False, cancel_futures=True)
        self._threads.shutdown(wait=False, cancel_futures=True)
