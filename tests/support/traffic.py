"""Small traffic, and the arrivals for its checker."""

import json

import numpy as np

from ray_messaging.replay.replay_plan import Plan
from ray_messaging.replay.trace import Traffic


def traffic_of(rows, *, texts=None, name="small"):
    """Build traffic from (sender, receiver) or (sender, receiver, time) rows."""
    agents = list(dict.fromkeys(agent for row in rows for agent in row[:2]))
    return Traffic(
        name,
        agents,
        np.array([agents.index(row[0]) for row in rows], np.int32),
        np.array([agents.index(row[1]) for row in rows], np.int32),
        np.array([row[2] if len(row) > 2 else number for number, row in enumerate(rows)], np.float64),
        texts,
    )


def plan_of(rows, groups, *, texts=None, speed=None):
    """Plan traffic; `groups` maps each agent to its group."""
    traffic = traffic_of(rows, texts=texts)
    return Plan(traffic, np.array([groups[agent] for agent in traffic.agents], np.int32), speed=speed)


def arrive(checker, plan, numbers, *, now=11.0, sent_at=10.0, **changes):
    """Hand messages of the plan's traffic to a checker; `changes` (text, time, from_id, to_id) apply to all."""
    traffic, lines, from_ids, to_ids = plan.traffic, [], [], []
    for n in numbers:
        known = min(max(n, 0), len(traffic) - 1)
        note = {"n": n, "time": changes.get("time", traffic.times[known])}
        if traffic.texts is not None:
            note["text"] = changes.get("text", traffic.texts[known])
        lines.append(json.dumps(note).encode())
        from_ids.append(changes.get("from_id", traffic.agents[traffic.sources[known]]))
        to_ids.append(changes.get("to_id", traffic.agents[traffic.targets[known]]))
    kind = np.int64 if all(isinstance(agent, int) for agent in from_ids + to_ids) else object
    checker.take(lines, np.array(from_ids, kind), np.array(to_ids, kind), np.full(len(lines), sent_at), now)
