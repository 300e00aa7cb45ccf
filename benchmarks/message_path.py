"""Count the files and functions of this package that one message passes through.

Run: python -m benchmarks.message_path [--json] [--trace]

Two paths are counted, on a LocalServer, with one recipient and an interceptor that has one rule:

- send: one awaited `Messager.send_message`, from the call to the receipt, without the receiver's background tasks.
  The row "send, until the transport" ends where the transport takes the frame. With a remote interceptor, as every
  experiment on Ray has one, the batch goes over its lane; what the interceptor does is not counted.
- fetch: `Messager.fetch_messages`, a look at the payload, and `Messager.ack`. The row "fetch, without the transport"
  leaves the transport's functions out.

With --on-ray: a send by a handle until the other handle's ack, a broadcast, a step of a run, and a change of the rules,
each in all processes of a cluster (see `ray_paths`).

Only Python functions in the files of `ray_messaging` count; comprehensions and generator expressions do not. Each path
runs a few times before it is counted, so that what happens once per connection is left out.

files      distinct files in which a function was entered
functions  distinct functions that were entered
calls      all entries of functions; a coroutine that resumes is not entered again, unless it began before the path
changes    calls whose function lies in another file than that of the call before
"""

import argparse
import asyncio
import json
import sys
import threading
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ray_messaging
from benchmarks import ray_paths
from ray_messaging import LocalServer, Messager
from ray_messaging.interception.interceptor.interceptor import Interceptor
from ray_messaging.interception.interceptor.lane_server import LaneServer
from ray_messaging.interception.lane import LaneAddress
from ray_messaging.interception.rules import BlackList, MaxLength

PACKAGE = str(Path(ray_messaging.__file__).parent) + "/"
NO_FUNCTIONS = {"<listcomp>", "<dictcomp>", "<setcomp>", "<genexpr>"}
SENDER, RECEIVER = 1, 2
TURNS = 3  # the turn with the fewest calls counts, because a timer may come between the calls of another one
WARM_UP = 5


@dataclass(frozen=True)
class Call:
    """A function that was entered: its file, its name, and how many functions of the package it was called through."""

    file: str
    function: str
    depth: int


@dataclass
class MessagePath:
    """The calls of one path, in order."""

    name: str
    calls: list[Call] = field(default_factory=list)

    def until(self, name: str, folder: str) -> "MessagePath":
        """Return the part of the path that ends with the first function in a folder."""
        end = next(at for at, call in enumerate(self.calls) if call.file.startswith(folder))
        return MessagePath(name, self.calls[: end + 1])

    def without(self, name: str, folder: str) -> "MessagePath":
        """Return the path without the functions in a folder."""
        return MessagePath(name, [call for call in self.calls if not call.file.startswith(folder)])

    def counts(self) -> dict[str, Any]:
        """Return the counts of the table."""
        files = [call.file for call in self.calls]
        return {
            "path": self.name,
            "files": len(set(files)),
            "functions": len({(call.file, call.function) for call in self.calls}),
            "calls": len(self.calls),
            "changes": sum(one != other for one, other in pairwise(files)),
        }


class Recorder:
    """Record the functions of the package that are entered while it is active, outside of some tasks."""

    def __init__(self, ignored: set["asyncio.Task[Any]"]) -> None:
        self._ignored = ignored
        self._calls: list[Call] = []
        self._entered_codes: set[CodeType] = set()

    def __enter__(self) -> list[Call]:
        sys.setprofile(self._entered)
        return self._calls

    def __exit__(self, *_error: object) -> None:
        sys.setprofile(None)

    def _entered(self, frame: FrameType, event: str, _arg: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or code.co_name in NO_FUNCTIONS:
            return
        if asyncio.current_task() in self._ignored or (_resumes(frame) and code in self._entered_codes):
            return
        self._entered_codes.add(code)
        self._calls.append(Call(code.co_filename.removeprefix(PACKAGE), code.co_qualname, _depth(frame)))


def _resumes(frame: FrameType) -> bool:
    """Return whether a coroutine goes on, rather than begins: the operand of its RESUME says so."""
    return frame.f_code.co_code[frame.f_lasti + 1] & 3 != 0


def _depth(frame: FrameType) -> int:
    depth, caller = 0, frame.f_back
    while caller is not None:
        depth += caller.f_code.co_filename.startswith(PACKAGE) and caller.f_code.co_name not in NO_FUNCTIONS
        caller = caller.f_back
    return depth


async def _read(receiver: Messager) -> None:
    for message in await receiver.fetch_messages(timeout=5.0):
        message.payload  # noqa: B018 - it is decoded when it is looked at
    await receiver.ack()


async def _all_wait() -> None:
    """Return once each other task waits for a future: all loops have done their work."""
    others: set[Any] = asyncio.all_tasks() - {asyncio.current_task()}
    while not all(task._fut_waiter is not None and not task._fut_waiter.done() for task in others):
        await asyncio.sleep(0)
        others = {task for task in others if not task.done()}


class RemoteInterceptor:
    """A handle of an interceptor whose lane is served by another thread, which the recorder does not see."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        interceptor = Interceptor("path", [MaxLength(1000)])
        self._server = LaneServer(interceptor.answer)
        self._address = asyncio.run_coroutine_threadsafe(self._server.start("127.0.0.1"), self._loop).result()
        self.lane = self.forward_batch = self

    async def remote(self, **_options: object) -> LaneAddress:
        """Return the lane's address, as `handle.lane.remote()` does."""
        return self._address

    def close(self) -> None:
        """End the lane and its thread."""
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)


async def measure() -> list[MessagePath]:
    """Send and fetch a message, and return the paths."""
    remote = RemoteInterceptor()
    with LocalServer() as server:
        here = await _measure(server, Interceptor("path", [BlackList((8, 9))]))
        (_, sent, *_) = await _measure(server, remote)
    remote.close()
    return [*here[:2], MessagePath("send, remote interceptor", sent.calls), *here[2:]]


async def _measure(server: LocalServer, interceptor: object) -> list[MessagePath]:
    async with Messager(server, "path", interceptor, name="sender") as sender:
        before = asyncio.all_tasks()
        async with Messager(server, "path", interceptor, name="receiver") as receiver:
            channel = receiver.get_agent_chat_channel(RECEIVER)
            await receiver.subscribe_and_start_listening([channel])
            for _ in range(WARM_UP):
                await sender.send_message(channel, {"text": "hello"}, SENDER, RECEIVER)
                await _read(receiver)
            sends, fetches = [], []
            for _ in range(TURNS):
                await _all_wait()
                with Recorder(asyncio.all_tasks() - before) as calls:
                    await sender.send_message(channel, {"text": "hello"}, SENDER, RECEIVER)
                sends.append(calls)
                while not receiver.stats()["inbox"]:  # noqa: ASYNC110 - there is no event for it
                    await asyncio.sleep(0)
                await _all_wait()
                with Recorder(set()) as calls:
                    await _read(receiver)
                fetches.append(calls)
            sent = MessagePath("send", min(sends, key=len))
            fetched = MessagePath("fetch, payload, ack", min(fetches, key=len))
            return [
                sent.until("send, until the transport", "transports/"),
                sent,
                fetched.without("fetch, without the transport", "transports/"),
                fetched,
            ]


def table(paths: list[MessagePath]) -> str:
    """Return the counts as a plain table."""
    rows = [path.counts() for path in paths]
    columns = list(rows[0])[1:]
    lines = [" " * 28 + "".join(f"{column:>11}" for column in columns)]
    lines += [f"{row['path']:<28}" + "".join(f"{row[column]:>11}" for column in columns) for row in rows]
    return "\n".join(lines)


def trace(path: MessagePath) -> str:
    """Return the calls of a path in order, indented by depth, with their files."""
    return "\n".join(f"{'  ' * call.depth + call.function:<70} {call.file}" for call in path.calls)


def _print_on_ray(*, as_json: bool, trace: bool) -> None:
    found = ray_paths.measure()
    counts = {path: (len({file for file, _ in entered}), len(entered)) for path, entered in found.items()}
    if trace:
        for path, entered in found.items():
            print(f"{path}:", *(f"  {function:<60} {file}" for file, function in sorted(entered)), sep="\n")
    if as_json:
        print(
            json.dumps({path: {"files": files, "functions": functions} for path, (files, functions) in counts.items()})
        )
        return
    print(f"{'':<28}{'files':>11}{'functions':>11}")
    for path, (files, functions) in counts.items():
        print(f"{path:<28}{files:>11}{functions:>11}")


def main() -> None:
    """Measure and print."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.message_path", description=__doc__.partition("\n")[0])
    options.add_argument("--json", action="store_true", help="print the counts as JSON, with --trace also the calls")
    options.add_argument("--trace", action="store_true", help="print the functions in order, indented, with their file")
    options.add_argument("--on-ray", action="store_true", help="count the paths of handles and steps, in all processes")
    chosen = options.parse_args()
    if chosen.on_ray:
        _print_on_ray(as_json=chosen.json, trace=chosen.trace)
        return
    paths = asyncio.run(measure())
    if chosen.json:
        calls = {path.name: [[call.file, call.function, call.depth] for call in path.calls] for path in paths}
        print(json.dumps({"counts": [path.counts() for path in paths]} | ({"calls": calls} if chosen.trace else {})))
        return
    if chosen.trace:
        for path in paths[1:3] + paths[4:]:  # the whole ones
            print(f"{path.name}:\n{trace(path)}\n")
    print(table(paths))


if __name__ == "__main__":
    main()
