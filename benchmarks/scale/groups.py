"""Groups in a ring on one server, more and more of them: the rate, and the work of each process for a message.

First each group has an actor of its own, then eight of the largest number share one. Beside it stands what the actors
take of the processor when nothing is sent.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.axes.cost.processes import client, pid_of, server_pid
from benchmarks.axes.cost.processor import seconds_of
from benchmarks.axes.society.society import BLACK_LIST, Society
from benchmarks.reports.lines import Line
from ray_messaging import Messaging

GROUPS = (1, 8, 32, 128)
AGENTS_EACH = 500
HOUSED, IDLE_S = 8, 5.0
LEAST = {32: 2.5, 128: 1.5}  # million messages a second
COMMANDS = ("evalsha", "eval", "xread")
BULK = "in bulk"
WARM_UP_ROWS = 250_000  # of each group: until then each frame meets memory that its process has not touched before
ROWS = 1_000
PER = f"per {ROWS:,} messages"


def measure(counts: Sequence[int], seconds: float, rounds: int) -> list[Line]:
    """Let a society grow; measure at each number of groups, once all of them are warm; then with fewer actors."""
    lines = _measured(counts, seconds, rounds, 1)
    return lines + (_measured(counts[-1:], seconds, rounds, HOUSED) if counts[-1] > HOUSED else [])


def _measured(counts: Sequence[int], seconds: float, rounds: int, housed: int) -> list[Line]:
    lines: list[Line] = []
    with (
        Messaging.start("scale", rules=[BLACK_LIST]) as messaging,
        Society(messaging, AGENTS_EACH, 1, housed=housed) as ring,
    ):
        for count in counts:
            ring.grow(count)
            ring.rate("send_rows", WARM_UP_ROWS)
            part = f"groups: {count}" + (f", {housed} in each actor" if housed > 1 else "")
            lines.append(
                Line(part, "groups, with nothing to do: processor", "cores", [_idle(ring) for _ in range(rounds)])
            )
            turns = [_turn(messaging, ring, seconds) for _ in range(rounds)]
            for name, unit in turns[0]:
                values, least = [turn[name, unit] for turn in turns], LEAST.get(count) if name == BULK else None
                lines.append(Line(part, name, unit, values, least=least))
    return lines


def _idle(ring: Society) -> float:
    """Return the processor time of the groups' processes in a second without any message."""
    pids = _pids(ring)
    before, began = sum(map(seconds_of, pids)), time.monotonic()
    time.sleep(IDLE_S)
    return (sum(map(seconds_of, pids)) - before) / (time.monotonic() - began)


def _pids(ring: Society) -> list[int]:
    return sorted({pid_of(member) for member in ring.members})


def _turn(messaging: Messaging, ring: Society, seconds: float) -> dict[tuple[str, str], float]:
    """Send in bulk; return the rate, and what each kind of process did for the messages, by name and unit."""
    processes = {
        "groups": _pids(ring),
        "interceptor": [pid_of(messaging.interceptor)],
        "server": [server_pid(messaging)],
    }
    with client(messaging.redis) as asked:
        commands, work, began = _commands(asked), {name: _work(pids) for name, pids in processes.items()}, time.time()
        sent, ended = ring.begin("bulk", seconds)()
        worked, commanded = {name: _work(pids) for name, pids in processes.items()}, _commands(asked)
    found = {(BULK, "million/s"): sent / (ended - began) / 1e6}
    for name, before in work.items():
        took, waits, cut_off = (now - then for now, then in zip(worked[name], before, strict=True))
        found[f"{name}: processor", "us a message"] = 1e6 * took / sent
        found[f"{name}: waits", PER] = ROWS * waits / sent
        found[f"{name}: cut off", PER] = ROWS * cut_off / sent
    for name, earlier in commands.items():
        calls, micros = (now - then for now, then in zip(commanded[name], earlier, strict=True))
        found[f"server: calls of {name}", PER] = ROWS * calls / sent
        found[f"server: in {name}", "us a message"] = micros / sent
    return found


def _commands(asked: Any) -> dict[str, tuple[float, float]]:
    """Return the calls of each command, and the microseconds in them."""
    told = asked.info("commandstats")
    found = ((told.get(f"cmdstat_{name}") or {"calls": 0, "usec": 0}) for name in COMMANDS)
    return {name: (each["calls"], each["usec"]) for name, each in zip(COMMANDS, found, strict=True)}


def _work(pids: list[int]) -> tuple[float, int, int]:
    """Return the processor time of processes (s), how often they waited, and how often they were cut off."""
    waits = cut_off = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").iterdir()):
        try:
            told = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        waits += int(told["voluntary_ctxt_switches"])
        cut_off += int(told["nonvoluntary_ctxt_switches"])
    return sum(map(seconds_of, pids)), waits, cut_off
