"""What the calls through `me.remember` have used, by step, by agent and by model, from a log."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from ray_messaging.addressing.channels import AgentId
from ray_messaging.eventlog.call_rows import summed_calls
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.inspector.page_values import CallFacts, CallSums, Series, SlowAgent, name
from ray_messaging.inspector.sources.traffic import BINS
from ray_messaging.model.calls import STORE

_AGENTS, _SLOWEST, _NAMED = 12, 8, 5  # how many agents, slow steps, and recipients of a slow agent are shown at most
_COST, _TOKENS, _SECONDS = "cost", "tokens", "seconds"

_Row = Mapping[str, Any]


def facts_of_calls(log: EventLog) -> CallFacts:
    """Return the numbers, tokens, costs and times of the calls through `me.remember` that a log has.

    Raises: LogError if the log cannot be read.
    """
    calls = log.calls()
    made = calls.filter(pc.not_equal(calls["source"], STORE))
    sources = _summed(calls, "source")
    whole = {key: sum((row[key] for row in sources if row[key] is not None), 0) for key in ("saved_tokens", "calls")}
    saved = sum(row["calls"] for row in sources if row["source"] == STORE)
    costs = [row["cost"] for row in sources if row["cost"] is not None]
    steps = _summed(calls, "step")
    measure = _COST if costs else _TOKENS if any(map(_tokens, steps)) else _SECONDS
    agents = sorted(_summed(calls, "agent"), key=lambda row: -row["seconds"])[:_AGENTS]
    return CallFacts(
        whole["calls"] - saved,
        saved,
        whole["saved_tokens"],
        sum(map(_tokens, sources)),
        _money(sum(costs, Decimal(0))) if costs else "",
        measure,
        _over_steps(steps, measure),
        [_sums(name(row["agent"]), row) for row in agents],
        [_sums(name(row["model"] or "unknown"), row) for row in _summed(made, "model")],
        _slowest(log, _summed(calls, "step", "agent")),
    )


def _summed(calls: pa.Table, *by: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = summed_calls(calls, by).to_pylist()
    return rows


def _tokens(row: _Row) -> int:
    return (row["input_tokens"] or 0) + (row["output_tokens"] or 0)


def _money(amount: Decimal) -> str:
    """Return an amount of money as text, rounded to four significant digits, or to two decimals if these show more."""
    rounded = round(amount, max(2, 3 - amount.adjusted()) if amount else 2)
    return f"{rounded.normalize():,f}" if rounded != round(rounded, 2) else f"{rounded:,.2f}"


def _sums(title: str, row: _Row) -> CallSums:
    cost = "" if row["cost"] is None else _money(row["cost"])
    return CallSums(title, row["calls"], _tokens(row), cost, row["seconds"])


def _over_steps(rows: Sequence[_Row], measure: str) -> Series:
    """Return, for each step, the sum of a measure, such as tokens, over the step's calls through `me.remember`.

    If there are too many steps, each sum is over several steps, and stands at the first of these steps.
    """
    if not rows:
        return Series([], {measure: []})
    first, last = rows[0]["step"], rows[-1]["step"]
    width = (last - first) // BINS + 1
    sums = [0.0] * ((last - first) // width + 1)
    for row in rows:
        found = _tokens(row) if measure == _TOKENS else row[measure]
        sums[(row["step"] - first) // width] += float(found or 0)
    return Series([first + place * width for place in range(len(sums))], {measure: [*sums]})


def _slowest(log: EventLog, rows: Sequence[_Row]) -> list[SlowAgent]:
    """Return the steps in which one agent was slower than all others by the most seconds, each with this agent.

    The step with the largest difference from the second slowest agent comes first. An agent's seconds are the sum over
    its calls. Calls may be made at the same time, so this sum may exceed the step's time.
    """
    by_step = defaultdict[int, list[tuple[float, AgentId]]](list)
    for row in rows:
        by_step[row["step"]].append((row["seconds"], row["agent"]))
    found: list[tuple[float, float, int, AgentId]] = []
    for step, times in by_step.items():
        seconds, agent = max(times, key=lambda each: each[0])
        others = [each for each, other in times if other != agent]
        found.append((seconds - max(others, default=0.0), seconds, step, agent))
    found.sort(key=lambda each: (-each[0], each[2]))
    return [_slow_agent(log, *each) for each in found[:_SLOWEST] if each[0] > 0]


def _slow_agent(log: EventLog, longer: float, seconds: float, step: int, agent: AgentId) -> SlowAgent:
    hearers = log.count(by="to_id", from_id=[agent], step=step)["to_id"].to_pylist()
    return SlowAgent(step, name(agent), seconds, longer, len(hearers), [name(each) for each in hearers[:_NAMED]])
