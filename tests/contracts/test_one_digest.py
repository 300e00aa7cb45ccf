"""One digest: a rumour gives the digests and states of one loop, on every layout and after every fault."""

import functools
import itertools
import random

import pytest
from faults.proxy import Proxy
from support.rumour import Rumour, college_edges, small_world
from support.rumour_groups import Moves, RumourGroups, proves
from support.servers import RedisProcess
from support.step_faults import Chaos, FailAt, Repeat

SMALL = Rumour(small_world(24), steps=4, chance=110)
RING = Rumour(small_world(640), chance=60)


MODES = pytest.mark.parametrize("senders", [False, True], ids=["all", "senders"])


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
@pytest.mark.parametrize("count", [1, 8, pytest.param(64, marks=pytest.mark.long)])
async def test_a_rumour_on_any_number_of_groups(config, exp_id, count, senders):
    await proves(RumourGroups(config, exp_id, RING, count, senders=senders))


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
    ],
)
@pytest.mark.parametrize("deadly", [True, pytest.param(False, marks=pytest.mark.long)], ids=["dies", "goes on"])
async def test_the_nth_call_of_the_protocol_fails(run_small, side, deadly, in_parts):
    met = set()
    for nth in itertools.count(1):
        faults = FailAt(nth, side, deadly=deadly, in_parts=in_parts)
        await run_small(faults, senders=in_parts)
        if faults.met is None:
            break
        met.add(faults.met)
    assert met >= {"take", "open", "wait", "read_box", "let_go", *(["send", "close"] if in_parts else ["commit"])}


@MODES
async def test_each_call_comes_twice_and_again_late(run_small, senders):
    for in_parts in (False, True):
        await run_small(Repeat(in_parts=in_parts), senders=senders)


@MODES
async def test_any_call_fails_kills_comes_twice_or_late(run_small, senders):
    deaths = 0
    for seed in range(4):
        faults = Chaos(seed)
        await run_small(faults, senders=senders)
        deaths += faults.deaths
    assert deaths >= 3


@pytest.mark.long
@pytest.mark.parametrize("side", ["request", "reply"])
@pytest.mark.parametrize("killed", [False, True], ids=["its connection is cut", "the server is killed"])
async def test_the_nth_piece_on_the_wire_is_lost(redis_process, exp_id, side, killed):
    def restart():
        redis_process.kill()
        redis_process.start()

    lost = [True]
    with Proxy(redis_process.config) as proxy:
        for nth in itertools.count(1, 6):  # each one takes six times as long
            groups = RumourGroups(proxy.config, f"{exp_id}-{nth}", SMALL, 2, senders=killed)
            lose = functools.partial(proxy.lose, nth, up=side == "request", then=restart if killed else None)
            await proves(groups, begins=lose, ends=lambda: lost.append(proxy.spare()))
            if not lost[-1]:
                break
    assert nth > 12


@pytest.mark.long
async def test_a_rumour_while_replies_are_cut(redis_process, exp_id):
    with Proxy(redis_process.config) as proxy:
        cut = functools.partial(setattr, proxy, "cut_replies", 0.3)
        await proves(RumourGroups(proxy.config, exp_id, SMALL, 2), begins=cut, ends=proxy.spare, within_s=100)
        assert proxy.cuts >= 10


# -- agents that move -------------------------------------------------------------------------------------------------


@pytest.fixture
def killed_at_random(tmp_path):
    """Return a function that runs groups on a Valkey that is killed at one of so many pieces on the wire, and moves.

    It returns how often the server was killed, and how many agents moved.
    """
    server = RedisProcess(tmp_path, binary="valkey").start()

    def restart():
        server.kill()
        server.start()

    async def run(exp_id, rumour, count, moves, pieces, **settings):
        with Proxy(server.config, seed=moves.chance.random()) as proxy:
            groups = RumourGroups(proxy.config, exp_id, rumour, count, **settings)
            begins = functools.partial(proxy.lose_some, pieces, restart)
            await proves(groups, begins=begins, ends=proxy.spare, moves=moves, within_s=500)
        return proxy.cuts, groups.moved

    yield run
    server.kill()


@pytest.mark.long
@MODES
async def test_agents_move_while_processes_and_the_server_are_killed(killed_at_random, exp_id, senders):
    rumour = Rumour(small_world(120), steps=40, chance=60)
    for seed in range(2):
        faults, moves = Chaos(seed, 0.02), Moves(random.Random(seed), count=10, rest_s=0.005)
        kills, moved = await killed_at_random(f"{exp_id}-{seed}", rumour, 3, moves, 60, senders=senders, faults=faults)
        assert kills >= 3
        assert moved >= 60
