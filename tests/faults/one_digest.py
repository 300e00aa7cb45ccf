"""Table of one digest: a rumour on each layout and after each fault, beside one loop without any messaging.

python tests/faults/one_digest.py [--only TEXT ...] [--quick] [--generated]

Digests of all steps and states must equal those of the loop; on Ray the digests of the event log, too. "groups" in the
first column are in this process, "actors" on Ray. The graph is that of CollegeMsg where ../shared/data holds it, unless
--generated. --quick takes every 6th call in the sweeps. The exit code is 1 if anything differs. All takes some hours.
"""

import argparse
import asyncio
import logging
import random
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from functools import cache, partial
from itertools import chain, product
from itertools import count as numbers
from pathlib import Path

import ray
from rich.console import Console
from rich.table import Table

TESTS = Path(__file__).resolve().parents[1]
sys.path[:1] = [str(TESTS), str(TESTS.parent)]  # in place of this folder: it is the package `faults`

from support.bare_ray import start_ray  # noqa: E402
from support.rumour import Rumour, college_edges, sequential, small_world  # noqa: E402
from support.rumour_groups import Moves, RumourGroups  # noqa: E402
from support.servers import RedisProcess  # noqa: E402
from support.step_faults import Chaos, FailAt, Repeat  # noqa: E402

from faults import rumour_on_ray  # noqa: E402 - after the path
from faults.proxy import Proxy  # noqa: E402
from faults.rumour_on_ray import FAULTS  # noqa: E402
from ray_messaging.config import ShardsConfig  # noqa: E402

COLLEGE = TESTS.parents[1] / "shared" / "data" / "collegemsg" / "CollegeMsg.txt.gz"
SMALL = Rumour(small_world(24), steps=4, chance=110)
COUNTS, MODES = (1, 2, 8, 64), (False, True)
one_loop = cache(sequential)


def differences(groups, **how):
    """Run groups in this process; return the differences from one loop."""

    async def ask():
        async with groups:
            return await groups.run(within_s=300, **how)

    states, digests = asyncio.run(ask())
    wanted = one_loop(groups.rumour)
    differs = [f"digest {n}" for n, (mine, its) in enumerate(zip(digests, wanted[1], strict=True)) if mine != its]
    return [*differs, "states"] if states != wanted[0] else differs


def restart(server):
    """Kill a server, and start it again on its data."""
    server.kill()
    server.start()


class Sweeps:
    """The runs in this process on one Valkey; each returns how many faults it met, and what differs."""

    def __init__(self, server, stride):
        self.server, self.stride, self.names = server, stride, numbers()

    def groups(self, config, rumour, count, senders, faults=None):
        return RumourGroups(config, f"digest-{next(self.names)}", rumour, count, senders=senders, faults=faults)

    def layout(self, rumour, count, senders, faults=None):
        made = None if faults is None else faults()
        differs = differences(self.groups(self.server.config, rumour, count, senders, made))
        return getattr(made, "met", 0), differs

    def cut(self, rumour, count, senders):
        with Proxy(self.server.config) as proxy:
            groups = self.groups(proxy.config, rumour, count, senders)
            differs = differences(groups, begins=partial(setattr, proxy, "cut_replies", 0.3), ends=proxy.spare)
            return proxy.cuts, differs

    def moving(self, rumour, count, senders):
        with tempfile.TemporaryDirectory(prefix="digest-") as folder:
            server = RedisProcess(folder, binary="valkey").start()  # everysec may lose what was acknowledged
            try:
                with Proxy(server.config) as proxy:
                    groups = self.groups(proxy.config, rumour, count, senders)
                    begins = partial(proxy.lose_some, 40 * count, partial(restart, server))
                    differs = differences(groups, begins=begins, ends=proxy.spare, moves=Moves(random.Random(7)))
                    return proxy.cuts, differs
            finally:
                server.kill()

    def bodies(self, rumour, count, senders, killed):
        """Have bodies on three servers, each of which is killed again and again at random pieces on the wire."""
        with ExitStack() as stack:
            folder, servers = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="digest-"))), []
            for number in range(3):
                (folder / str(number)).mkdir()
                servers.append(RedisProcess(folder / str(number), binary="valkey").start())
                stack.callback(servers[-1].kill)
            proxies = [stack.enter_context(Proxy(server.config, seed=n)) for n, server in enumerate(servers)]
            config = ShardsConfig(servers=tuple(proxy.config for proxy in proxies), body_bytes=64)

            def begins():
                for proxy, server in zip(proxies, servers, strict=True):
                    proxy.lose_some(40 * count, partial(restart, server))

            groups = self.groups(config, rumour, count, senders)
            hooks = {"begins": begins, "ends": lambda: [proxy.spare() for proxy in proxies]} if killed else {}
            differs = differences(groups, **hooks)
            return sum(proxy.cuts for proxy in proxies), differs

    def each_call(self, senders, side, deadly):
        found = []
        for met in numbers():
            faults = FailAt(1 + met * self.stride, side, deadly=deadly)
            found += differences(self.groups(self.server.config, SMALL, 2, senders, faults))
            if faults.met is None:
                return met, found
        raise AssertionError

    def each_piece(self, senders, up, killed):
        found, lost, restarted = [], [], partial(restart, self.server)
        with Proxy(self.server.config) as proxy:
            for met in numbers():
                begins = partial(proxy.lose, 1 + met * self.stride, up=up, then=restarted if killed else None)
                groups = self.groups(proxy.config, SMALL, 2, senders)
                found += differences(groups, begins=begins, ends=lambda: lost.append(proxy.spare()))
                if not lost[-1]:
                    return met, found
        raise AssertionError


def in_process(sweeps, rumour):
    """Return the runs in this process: layout, mode, fault, run."""
    faults = [
        ("no fault", None),
        ("calls repeated, also late", Repeat),
        ("calls fail, kill, repeat", partial(Chaos, 7, 0.02)),
    ]
    for count, senders, (name, fault) in product(COUNTS, MODES, faults):
        yield f"{count} groups", senders, name, partial(sweeps.layout, rumour, count, senders, fault)
    for count, senders in product((1, 2, 8), MODES):
        yield f"{count} groups", senders, "30% of replies cut", partial(sweeps.cut, rumour, count, senders)
    for count, senders in product(COUNTS, MODES):
        for killed, fault in ((False, "no fault"), (True, "servers killed at random")):
            run = partial(sweeps.bodies, rumour, count, senders, killed)
            yield f"{count} groups, bodies on 3 servers", senders, fault, run
    for count, senders in product((2, 8), MODES):
        run = partial(sweeps.moving, rumour, count, senders)
        yield f"{count} groups", senders, "agents move, server killed at random", run
    for senders, side, deadly in product(MODES, ("before", "after"), (True, False)):
        fault = f"each call fails {side} its effect, its process {'dies' if deadly else 'goes on'}"
        yield "2 small groups", senders, fault, partial(sweeps.each_call, senders, side, deadly)
    for senders, up, killed in product(MODES, MODES, MODES):
        fault = f"each {'request' if up else 'reply'} lost, {'server killed' if killed else 'connection cut'}"
        yield "2 small groups", senders, fault, partial(sweeps.each_piece, senders, up, killed)


def on_ray(rumour):
    """Return the runs on Ray: layout, mode, fault, run."""
    for groups, senders, tasks in product(COUNTS, MODES, (1, 8)):
        if tasks == 1 or groups >= tasks:
            yield on_ray_with("no fault", rumour, groups, tasks, senders)
    for senders, fault, shards in product(MODES, FAULTS, (1, 3)):
        of_shards, of_one = fault == "another server killed at random", fault == "30% of the replies cut"
        if fault != "no fault" and not (of_shards if shards == 1 else of_one):
            yield on_ray_with(fault, rumour, 8, 8, senders, shards)


def on_ray_with(fault, rumour, groups, tasks, senders, shards=1):
    """Return a run on Ray: layout, mode, fault, run."""

    def run():
        if not ray.is_initialized():
            start_ray()
        with tempfile.TemporaryDirectory(prefix="digest-") as folder:
            outcome = rumour_on_ray.run(rumour, Path(folder), fault, groups, tasks, senders=senders, shards=shards)
        return outcome.faults, outcome.differs

    layout = f"{groups} actors, {tasks} tasks" + (f", bodies on {shards} servers" if shards > 1 else "")
    return layout, senders, fault, run


def main():
    """Run all, print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="rows with all of these texts")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--generated", action="store_true")
    args = parser.parse_args()
    logging.basicConfig(level=logging.CRITICAL)  # faults log a lot, and the table has the results
    college = COLLEGE.exists() and not args.generated
    rumour = Rumour(college_edges(COLLEGE)) if college else Rumour(small_world(640), chance=60)
    console = Console(width=None if sys.stdout.isatty() else 160)
    graph = f"{'CollegeMsg' if college else 'generated'}, {len(rumour.agents):,} agents, {rumour.steps} steps"
    drawn = Table("layout", "wait for", "fault", "faults met", "equal", "seconds", title=f"One digest: {graph}")
    failed = False
    with tempfile.TemporaryDirectory(prefix="digest-") as folder:
        server = RedisProcess(folder, binary="valkey", appendfsync="everysec").start()
        runs = chain(in_process(Sweeps(server, 6 if args.quick else 1), rumour), on_ray(rumour))
        try:
            for layout, senders, fault, run in runs:
                mode = "senders" if senders else "all"
                if not all(text in f"{layout}, {mode}, {fault}" for text in args.only):
                    continue
                begin = time.monotonic()
                try:
                    met, differs = run()
                except Exception as error:  # noqa: BLE001 - one run that fails must not hide the others
                    traceback.print_exc()
                    met, differs = 0, [f"{type(error).__name__}: {str(error)[:100]}"]
                cells = layout, mode, fault, f"{met:,}", "NO: " + ", ".join(differs[:3]) if differs else "yes"
                drawn.add_row(*cells, f"{time.monotonic() - begin:.1f}", style="bold red" if differs else "")
                console.print(*cells, sep=" | ", highlight=False)
                failed |= bool(differs)
        finally:
            server.kill()
    console.print(drawn)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
