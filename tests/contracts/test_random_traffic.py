"""Random programs whose calls are cut at any moment: each message is handled once, and in order for each pair."""

import random

import pytest
from support.groups_without_ray import groups_without_ray
from support.random_traffic import Program
from support.server_side import waiting_in

WEST, EAST = (1, 2, 3), (11, 12)
PAIRS = [(a, b) for a in WEST for b in EAST]


def seeds(usual, long, all_of_them):
    """Give the seeds of programs: those of the default suite, of the long tests, and of those that CI leaves out."""
    more, most = pytest.mark.long, [pytest.mark.long, pytest.mark.soak]
    return [
        *range(usual),
        *(pytest.param(seed, marks=more) for seed in range(usual, long)),
        *(pytest.param(seed, marks=most) for seed in range(long, all_of_them)),
    ]


@pytest.mark.one_server("what is cut lies before the server")
@pytest.mark.parametrize("seed", seeds(16, 60, 200))
async def test_handles_of_groups(monkeypatch, server, exp_id, seed):
    choose = random.Random(seed)
    inbox = choose.choice((4, 20, 10_000))
    async with groups_without_ray(
        monkeypatch,
        server,
        exp_id,
        {"west": WEST, "east": EAST},
        seed=seed,
        inbox_messages=inbox,
    ) as groups:
        west, east = groups["west"], groups["east"]
        senders = [west.handle() for _ in range(choose.randint(1, 3))]
        consumers = [east.handle() for _ in range(choose.randint(1, 3))]
        program = Program(seed, PAIRS)
        await program.run(senders, consumers)

        async def waiting():
            return await waiting_in(east.messager, "east")

        await program.drain(consumers, waiting)
        assert east.lent == 0


@pytest.mark.one_server("what is cut lies before the server")
@pytest.mark.parametrize("seed", seeds(8, 30, 100))
async def test_messagers(messagers, seed):
    choose = random.Random(seed)
    inbox = choose.choice((4, 20, 10_000))
    senders = [await messagers(name=f"sender{n}") for n in range(choose.randint(1, 3))]
    east = await messagers(name="east", host=EAST, inbox_messages=inbox)
    consumers = [east] * choose.randint(1, 3)
    program = Program(seed, PAIRS)
    # Of several that fetch by one messager, each may commit its own messages only.
    await program.run(senders, consumers, ("next", "acked", "iterate") if len(consumers) == 1 else ("acked",))

    async def waiting():
        return await waiting_in(east, "east")

    await program.drain(consumers, waiting)
