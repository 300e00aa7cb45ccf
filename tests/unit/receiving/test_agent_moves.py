"""Agents that leave a group by a call that is repeated, or that comes after the move was given up."""

import pytest
from support.contracts import fetch_all
from support.stepped import begin_steps

from ray_messaging.errors import AlreadyExists, MoveFailed
from ray_messaging.transports.agent_moves import Attempted, MoveOutcome


@pytest.fixture
async def pair(messagers):
    """Open two groups: east hosts agents 1 and 2, and west 3."""
    return await messagers(name="east", host=[1, 2]), await messagers(name="west", host=[3])


def contents(messages):
    return [(message.from_id, message.to_id, message.payload["n"]) for message in messages]


async def test_a_call_whose_answer_was_lost_has_its_effect_once(pair, monkeypatch):
    east, west = pair
    for n in range(3):
        await west.send_columns(3, [1, 2], {"n": n})
    moves = east.engine.transport.moves
    move, calls = moves.move, []

    async def twice(attempt):
        calls.append(await move(attempt))
        calls.append(await move(attempt))
        return calls[-1]

    monkeypatch.setattr(moves, "move", twice)
    await east.move_agents([1], to="west")
    assert [call.outcome for call in calls] == [MoveOutcome.DONE] * 2
    assert contents(await fetch_all(west, 3)) == [(3, 1, n) for n in range(3)]
    assert contents(await fetch_all(east, 3)) == [(3, 2, n) for n in range(3)]


async def test_a_call_in_steps_whose_answer_was_lost_has_its_effect_once(messagers, monkeypatch):
    await begin_steps(await messagers(name="setup"))
    west, east = await messagers(name="west", host=[0, 1]), await messagers(name="east", host=[2])
    moves = west.engine.transport.moves
    move, calls = moves.move, []

    async def twice(attempt):
        calls.append(await move(attempt))
        calls.append(await move(attempt))
        return calls[-1]

    monkeypatch.setattr(moves, "move", twice)
    await west.move_agents([0], to=east.name)
    assert [call.outcome for call in calls] == [MoveOutcome.DONE, MoveOutcome.STALE_DIRECTORY]
    with pytest.raises(AlreadyExists) as error:
        await west.add_agents([0])
    assert error.value.owner == east.name


async def test_a_late_attempt_after_a_move_was_given_up_has_no_effect(pair, monkeypatch):
    east, west = pair
    await west.send_columns([3, 3], [1, 2], {"n": 0})
    moves = east.engine.transport.moves
    move, late = moves.move, []

    async def full(attempt):
        late.append(attempt)
        return Attempted(MoveOutcome.FULL)

    monkeypatch.setattr(moves, "move", full)
    with pytest.raises(MoveFailed, match="no room"):
        await east.move_agents([1], to="west", timeout=0.5)
    assert (await move(late[-1])).outcome is MoveOutcome.OVER
    assert contents(await fetch_all(east, 2)) == [(3, 1, 0), (3, 2, 0)]
