"""Series and calls of steps: written once to the log's folder, and dropped from the server then."""

import asyncio
from decimal import Decimal

import msgspec
import pytest
from support.log_writing import Died, failed
from support.patience import WAIT_S
from support.step_society import AGENTS, SEED, STEPS, LoggedGroups, live
from support.stepped import begin_steps

from ray_messaging import EventLog
from ray_messaging.errors import InvalidQuery
from ray_messaging.eventlog.folder import Folder
from ray_messaging.eventlog.reading.questions import answer
from ray_messaging.eventlog.reading.scan import View
from ray_messaging.model.call_usage import CallUsage
from ray_messaging.model.calls import MODEL, CallRecord, encode_calls
from ray_messaging.model.exact import encode_exactly
from ray_messaging.model.series import encode_rows
from ray_messaging.transports.step_values import CollectedKind

ORDER = [("step", "ascending"), ("agent", "ascending")]


@pytest.fixture
async def society(server, exp_id, tmp_path):
    async with LoggedGroups(server, exp_id, tmp_path / "log") as found:
        yield found


async def died(*_args, **_kwargs):
    raise Died


@pytest.mark.parametrize("count", [1, 3])
async def test_series_and_calls_are_in_the_log_once_although_its_writer_dies(society, monkeypatch, count):
    monkeypatch.setattr("ray_messaging.eventlog.writing.writer.FILE_BYTES", 1)
    await begin_steps(society, groups=count, seed=SEED, lag=4)
    writer = await society.writer(segment_rows=100)
    monkeypatch.setattr(
        writer._collected._store, "drop_collected", died
    )  # the file is there, and the server has it, too
    living = asyncio.gather(*(live(group, hook=measured) for group in await society.groups(count)))
    await failed(writer)
    folder = Folder(society.folder)
    assert all(folder.collected_files(kind) for kind in CollectedKind)
    later = await society.writer(segment_rows=100)
    await asyncio.wait_for(living, WAIT_S)
    await asyncio.wait_for(later.caught_up(), WAIT_S)
    view = View(folder, [], collected=await later.unwritten())
    assert answer(view, "series", {}).to_pylist() == measures(STEPS)
    assert answer(view, "calls", {}).to_pylist() == calls(STEPS)
    assert answer(view, "sql", {"query": "select * from calls"}).sort_by(ORDER).to_pylist() == calls(STEPS)
    await asyncio.wait_for(later.retire(), WAIT_S)
    log = EventLog.open(society.folder)
    assert log.series().to_pylist() == measures(STEPS)
    assert log.calls().to_pylist() == calls(STEPS)
    assert log.sql("select * from calls order by step, agent").to_pylist() == calls(STEPS)
    assert await later._collected._store.collected_bytes() == 0
    check_sums(log)


def check_sums(log):
    by_step = log.calls(by="step").to_pylist()
    total = AGENTS + Decimal(sum(range(AGENTS))).scaleb(-12)
    assert [row["cost"] for row in by_step] == [None, *[total] * (STEPS - 1)]
    assert [row["step"] for row in by_step] == [*range(STEPS)]
    by_agent = log.calls(by=["agent", "model"]).to_pylist()
    assert [(row["agent"], row["model"], row["calls"], row["output_tokens"]) for row in by_agent] == [
        row
        for agent in range(AGENTS)
        for row in ((agent, "small", STEPS - 1, agent * (STEPS - 1)), (agent, None, 1, None))
    ]
    assert log.sql("select sum(cost) as cost from calls").to_pylist() == [{"cost": total * (STEPS - 1)}]
    with pytest.raises(InvalidQuery, match="must be among the columns agent, step"):
        log.calls(by="price")


async def measured(step):
    ids = step.places.column.to_numpy()
    step.keep_series(encode_rows(ids, {"x": ids * 0.5 + step.number}))
    step.keep_calls(encode_calls([record(step.number, agent) for agent in ids.tolist()]))


def record(step, agent):
    answer = encode_exactly([agent, step], "")
    used = CallUsage("small", 10, 4, agent, 10**12 + agent) if step else None  # a unit of money, and a little more
    return CallRecord(f"{agent}-1", agent, "ask", True, '{"args":[]}', 0.5, 2, MODEL, msgspec.Raw(answer), used)


def used(agent):
    cost = Decimal("1.000000000000") + Decimal(agent).scaleb(-12)
    return {"model": "small", "input_tokens": 10, "cached_tokens": 4, "output_tokens": agent, "cost": cost}


def calls(until):
    return [
        {"step": step, "agent": agent, "function": "ask", "arguments": '{"args":[]}', "result": f"[{agent},{step}]"}
        | {"seconds": 0.5, "tries": 2, "source": "model", "bytes": 3, "by_content": True, "key": f"{agent}-1"}
        | (used(agent) if step else dict.fromkeys(used(agent)))
        | {"saved_tokens": None, "saved_cost": None}
        for step in range(until)
        for agent in range(AGENTS)
    ]


def measures(until):
    return [{"step": step, "agent": agent, "x": agent * 0.5 + step} for step in range(until) for agent in range(AGENTS)]
