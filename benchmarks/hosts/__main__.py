"""Messages and steps between three hosts on this machine, beside plain Ray, by turns in one run.

    python -m benchmarks.hosts                    # all links, 3 rounds: 12 to 15 minutes on two cores
    python -m benchmarks.hosts --rounds 1 --link "10 ms"
    python -m benchmarks.hosts --part step --json
    python -m benchmarks.hosts --part step --congestion reno

The hosts are namespaces, and the links a program with delay, loss and rate: Linux, root, iproute2 and gcc
(tests/support/hosts.py). Server and interceptor are on a, the sender on b, the receiver on c. A rate is the median of
five windows, a time a median in ms, and in round trips of the link; a ratio is that to plain Ray in the same round, its
median over the rounds. All processes share the processors of this machine: at 0 ms they are what is measured.

The congestion control of TCP matters to steps: bbr, which some kernels have, sends a small burst on an idle connection
over a part of the round trip, and reno sends it at once, as cubic does, which only the machine itself may choose.
"""

import argparse
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from benchmarks.reports.lines import Line, as_json, ratios
from benchmarks.reports.screen import console

PLAIN = "plain Ray"
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
TESTS = Path(__file__).parents[2] / "tests"  # the hosts are those of the tests


class Link(NamedTuple):
    """How all links between the hosts are: the round trip in ms, the share that is lost, and Mbit/s from and to b."""

    name: str
    rtt_ms: float
    loss: float = 0.0
    megabits: float = 0.0

    def make(self, hosts: Any) -> None:
        """Make the links so."""
        hosts.heal()
        hosts.set_round_trip(self.rtt_ms)
        if self.loss:
            hosts.set_loss(self.loss)
        hosts.set_rate("b", self.megabits)


class Part(NamedTuple):
    """What is measured: the name that society.py knows, its sides, and the best that is wanted at 10 ms, by side."""

    name: str
    title: str
    unit: str
    sides: tuple[str, ...]
    wanted: dict[str, str]


OURS = "ray_messaging"
# By part, how many agents await one message after the other, on both sides. Each of them waits at least a round trip.
# So at 10 ms 1,000 agents send at most 100,000 messages a second, and cannot reach 100 times the rate of plain Ray.
AWAITING = {"awaited": 1_000, "awaited_by_many": 4_000}
LINKS = (
    Link("0 ms", 0),
    Link("1 ms", 1),
    Link("10 ms", 10),
    Link("40 ms", 40),
    Link("10 ms, 1% lost", 10, loss=0.01),
    Link("10 ms, 5 Mbit/s", 10, megabits=5),
)
PARTS = (
    Part("awaited", "awaited by 1,000 agents", "messages/s", (OURS, PLAIN), {OURS: "1.2 RTT"}),
    Part("awaited_by_many", "awaited by 4,000 agents", "messages/s", (OURS, PLAIN), {OURS: "100 x"}),
    Part("bulk", "bulk", "messages/s", (OURS, PLAIN), {OURS: "4 x"}),
    Part("lone", "a lone message after a pause", "ms", (OURS, PLAIN), {OURS: "1.2 RTT"}),
    Part(
        "step", "a step of 1,000 agents", "ms", ("by hand", "run", "advance(1)", PLAIN),
        {"by hand": "1.3 RTT", "run": "1.5 RTT", "advance(1)": "2 RTT"},
    ),
)  # fmt: skip


class Society:
    """The program of society.py on host a."""

    def __init__(self, hosts: Any) -> None:
        command = ["python", "-m", "benchmarks.hosts.society", "a:6380"]
        pipe = {"stdin": subprocess.PIPE, "stderr": None}
        self._process = hosts.start("a", *command, env={"RAY_AUTH_MODE": "disabled"}, **pipe)
        self._answer()

    def measure(self, plan: dict[str, object]) -> float:
        """Return one value."""
        self._process.stdin.write(f"{json.dumps(plan)}\n")
        self._process.stdin.flush()
        value: float = self._answer()["value"]
        return value

    def end(self) -> None:
        """End the program."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self) -> Any:
        for line in self._process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        raise RuntimeError("the program on host a has ended; stderr above has why")


def measured(
    society: Society, link: Link, part: Part, plan: argparse.Namespace, note: Callable[[str], None], *, warm: bool
) -> list[Line]:
    """Measure the sides of a part by turns; return a line for each.

    With `warm` a round before these is not counted: while Ray starts, a step took 36 ms, and 18 to 21 ms later.
    """
    values: dict[str, list[float]] = {side: [] for side in part.sides}
    amounts = {"seconds": plan.seconds, "messages": plan.messages, "steps": plan.steps}
    for number in range(-1 if warm else 0, plan.rounds):
        note(f"{link.name}: {part.title}, round {number + 1} of {plan.rounds}")
        for side in part.sides if number % 2 == 0 else reversed(part.sides):
            values[side].append(society.measure({"part": part.name, "side": side, **amounts}))
    values = {side: found[-plan.rounds :] for side, found in values.items()}
    return [Line(f"{part.title}, {link.name}", side, part.unit, found) for side, found in values.items()]


def cell(link: Link, part: Part, line: Line, plain: Line) -> str:
    """Return what the table says of a side: its time or rate, and its ratio to plain Ray's."""
    if line.unit != "ms":
        said = f"{line.median:,.0f}/s"
        if link.rtt_ms and part.name in AWAITING:  # each agent waits for as long as all agents take
            said += f", {1e3 * AWAITING[part.name] / line.median / link.rtt_ms:.2f} RTT a call"
    elif link.rtt_ms:
        said = f"{line.median:.1f} ms, {line.median / link.rtt_ms:.2f} RTT"
    else:
        said = f"{line.median:.2f} ms"
    return said if line is plain else f"{said}, {statistics.median(ratios(line.values, plain.values)):.3g} x"


def show(links: Sequence[Link], parts: Sequence[Part], found: dict[tuple[str, str], list[Line]], control: str) -> None:
    """Print a table with a column for each link. `control` is TCP's congestion control."""
    title = f"Between three hosts, TCP with {control}"
    table = Table("", "side", *(link.name for link in links), "wanted at 10 ms", title=title)
    for part in parts:
        for place, side in enumerate(part.sides):
            lines = [found[link.name, part.name] for link in links]
            cells = [cell(link, part, each[place], each[-1]) for link, each in zip(links, lines, strict=True)]
            table.add_row("" if place else part.title, side, *cells, part.wanted.get(side, ""))
    console().print(table)


def main() -> None:
    """Measure, and print the table or JSON."""
    sys.path.append(str(TESTS))
    from support.hosts import Hosts, missing

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--link", action="append", choices=[link.name for link in LINKS], help="only this; repeatable")
    parser.add_argument("--part", action="append", choices=[part.name for part in PARTS], help="only this; repeatable")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.7, help="of each of the five windows of a rate")
    parser.add_argument("--messages", type=int, default=8, help="lone messages in a round")
    parser.add_argument("--steps", type=int, default=14, help="in a round")
    parser.add_argument("--congestion", default="", help="TCP's congestion control (the kernel's)")
    parser.add_argument("--json", action="store_true", help="print JSON rather than the table")
    plan = parser.parse_args()
    if (reason := missing()) is not None:
        sys.exit(reason)
    links = [link for link in LINKS if link.name in (plan.link or [link.name])]
    parts = [part for part in PARTS if part.name in (plan.part or [part.name])]
    control = plan.congestion or CONTROL.read_text().strip()
    with Hosts(plan.congestion) as hosts, console(stderr=True).status("Ray starts on the hosts") as status:
        hosts.start_ray()
        society = Society(hosts)
        try:
            found: dict[tuple[str, str], list[Line]] = {}
            for link in links:
                link.make(hosts)
                for part in parts:
                    warm = link is links[0]
                    found[link.name, part.name] = measured(society, link, part, plan, status.update, warm=warm)
        finally:
            hosts.heal()
            society.end()
    if plan.json:
        print(as_json([line for lines in found.values() for line in lines]))
    else:
        show(links, parts, found, control)


if __name__ == "__main__":
    main()
