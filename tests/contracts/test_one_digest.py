"""One digest: a rumour gives the digests and states of one loop, on every layout and after every fault.

The soaking tests ask each call, each piece on the wire and each layout, the others some of them.
"""

import functools
import itertools
import random
from contextlib import ExitStack

import pytest
from faults.proxy import Proxy
from support.bodies import bodies_on
from support.rumour import Rumour, college_edges, small_world
from support.rumour_groups import Moves, RumourGroups, proves
from support.step_faults import Chaos, FailAt, Repeat

SMALL = Rumour(small_world(24), steps=4, chance=110)
LONGER = Rumour(small_world(24), steps=16, chance=110)
RING = Rumour(small_world(640), chance=60)


MODES = pytest.mark.parametrize("senders", [False, True], ids=["all", "senders"])
SOAK = [pytest.mark.long, pytest.mark.soak]


@pytest.fixture(params=["one server", "three servers"])
def config(request):
    """Return the config of the experiment: on three servers, two have bodies of frames."""
    return request.getfixturevalue("valkey_config" if request.param == "one server" else "shards_config")


@pytest.fixture
def run_small(config, exp_id):
    """Return a function that runs the small rumour on two groups, each time in an experiment of its own."""
    numbers = itertools.count()

    async def run(faults, **settings):
        await proves(RumourGroups(config, f"{exp_id}-{next(numbers)}", SMALL, 2, faults=faults, **settings))

    return run


@MODES
@pytest.mark.parametrize("count", [1, pytest.param(2, marks=SOAK), 8, pytest.param(64, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(lambda: None, id="no fault"),
        pytest.param(Repeat, id="calls come twice", marks=SOAK),
        pytest.param(lambda: Chaos(7, 0.02), id="calls fail, kill, come twice", marks=SOAK),
    ],
)
async def test_a_rumour_on_any_number_of_groups(config, exp_id, count, senders, faults):
    await proves(RumourGroups(config, exp_id, RING, count, senders=senders, faults=faults()), within_s=300)


@pytest.mark.long
async def test_a_rumour_among_the_students_of_collegemsg(config, data, exp_id):
    rumour = Rumour(college_edges(data("collegemsg/CollegeMsg.txt.gz")))
    await proves(RumourGroups(config, exp_id, rumour, 8))


@pytest.mark.parametrize("config", ["one server"], indirect=True)
@pytest.mark.parametrize(
    ("side", "in_parts"),
    [
        pytest.param("before", False, id="before, in one call"),
        pytest.param("after", True, id="after, senders, in parts", marks=pytest.mark.long),
        pytest.param("before", True, id="before, senders, in parts", marks=SOAK),
        pytest.param("after", False, id="after, in one call", marks=SOAK),
    ],
)
@pytest.mark.parametrize("deadly", [True, pytest.param(False, marks=pytest.mark.long)], ids=["dies", "goes on"])
async def test_the_nth_call_of_the_protocol_fails(run_small, side, deadly, in_parts):
    undisturbed = FailAt(0, side, deadly=deadly, in_parts=in_parts)
    await run_small(undisturbed, senders=in_parts)
    met = set()
    for name in sorted(undisturbed.names):
        for nth in itertools.count(1):
            faults = FailAt(nth, side, deadly=deadly, in_parts=in_parts, name=name)
            await run_small(faults, senders=in_parts)
            if faults.met is None:
                break
            met.add(name)
    assert met >= {"take", "open", "wait", "read_box", "let_go", *(["send", "close"] if in_parts else ["commit"])}


@MODES
async def test_each_call_comes_twice_and_again_late(run_small, senders):
    for in_parts in (False, True):
        await run_small(Repeat(in_parts=in_parts), senders=senders)


@MODES
async def test_any_call_fails_kills_comes_twice_or_late(run_small, senders):
    deaths = 0
    for seed in itertools.count():
        faults = Chaos(seed)
        await run_small(faults, senders=senders)
        deaths += faults.deaths
        if seed >= 3 and deaths >= 3:  # who dies when depends on the order of the calls, too
            break


def restart(process):
    process.kill()
    process.start()


def spread(configs):
    """Return the config of one server, or of three."""
    return configs[0] if len(configs) == 1 else bodies_on(configs)


@pytest.mark.long
@pytest.mark.parametrize("first", [1, *(pytest.param(nth, marks=pytest.mark.soak) for nth in range(2, 7))])
@pytest.mark.parametrize(
    ("count", "side", "killed", "senders"),
    [
        *((1, side, killed, killed) for side in ("request", "reply") for killed in (False, True)),
        (3, "reply", False, False),
        pytest.param(3, "request", True, True, marks=pytest.mark.soak),
        *(
            pytest.param(1, side, killed, not killed, marks=pytest.mark.soak)
            for side in ("request", "reply")
            for killed in (False, True)
        ),
    ],
)
async def test_the_nth_piece_on_the_wire_is_lost(processes, exp_id, count, side, killed, senders, first):
    """Its connection is cut, or the server is killed: the only one, or one that has bodies alone."""
    rumour, lost = (SMALL, LONGER)[count > 1], [True]
    victim = processes[count // 2]
    with Proxy(victim.config) as proxy:
        config = spread([proxy.config if each is victim else each.config for each in processes[:count]])
        for nth in itertools.count(first, 6):
            groups = RumourGroups(config, f"{exp_id}-{nth}", rumour, 2, senders=senders)
            then = functools.partial(restart, victim) if killed else None
            lose = functools.partial(proxy.lose, nth, up=side == "request", then=then)
            await proves(groups, begins=lose, ends=lambda: lost.append(proxy.spare()))
            if not lost[-1]:
                break
    assert nth > 12


@pytest.mark.long
@pytest.mark.parametrize(
    ("count", "senders"),
    [(2, False), *(pytest.param(*each, marks=pytest.mark.soak) for each in ((2, True), (8, False), (8, True)))],
)
async def test_a_rumour_while_replies_are_cut(redis_process, exp_id, count, senders):
    with Proxy(redis_process.config) as proxy:
        cut = functools.partial(setattr, proxy, "cut_replies", 0.3)
        groups = RumourGroups(proxy.config, exp_id, SMALL, count, senders=senders)
        await proves(groups, begins=cut, ends=proxy.spare, within_s=200)
        assert proxy.cuts >= 10


@pytest.mark.parametrize(
    ("count", "victims", "dying", "senders", "parts"),
    [
        pytest.param(3, (1,), False, True, 3, id="one with bodies alone"),
        pytest.param(3, (0, 1, 2), True, True, 3, id="any of three, and processes, agents move", marks=SOAK),
        pytest.param(1, (0,), True, False, 3, id="the only one, and processes, agents move", marks=SOAK),
        pytest.param(1, (0,), True, True, 3, id="the only one, senders", marks=SOAK),
        *(
            pytest.param(3, victims, False, senders, parts, id=f"{parts} groups, senders={senders}", marks=SOAK)
            for senders in (False, True)
            for victims, parts in (((0,), 1), ((0, 1, 2), 2), ((0, 1, 2), 8), ((0, 1, 2), 64))
        ),
    ],
)
async def test_servers_are_killed_at_random(processes, exp_id, count, victims, dying, senders, parts):
    with ExitStack() as stack:
        proxies = [stack.enter_context(Proxy(each.config, seed=n)) for n, each in enumerate(processes[:count])]

        def begins():
            for victim in victims:
                pieces = (parts + 1) * (2 if victim else 15 * len(victims))  # to the primary many more go
                proxies[victim].lose_some(pieces, functools.partial(restart, processes[victim]))

        def ends():
            for proxy in proxies:
                proxy.spare()

        rumour = Rumour(small_world(120), steps=40 if count == 1 else 24, chance=60)
        faults = Chaos(7, 0.02) if dying else None
        moves = Moves(random.Random(7), count=10, rest_s=0.005) if dying else None
        config = spread([proxy.config for proxy in proxies])
        groups = RumourGroups(config, exp_id, rumour, parts, senders=senders, faults=faults)
        await proves(groups, begins=begins, ends=ends, moves=moves, within_s=300)
        assert min(proxies[victim].cuts for victim in victims) >= 3 // count
        assert groups.moved >= 60 * dying
