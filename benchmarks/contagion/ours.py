"""The contagion by `ray_messaging.run`: `python -m benchmarks.contagion.ours` prints a line of JSON."""

import json
import time

import ray_messaging
from benchmarks.contagion.world import FIRST, STEPS, edges, thresholds


def person(me, inbox):
    """Run the contagion for one agent; agent 0 keeps the times of its first and its last step."""
    state = me.state
    state["heard"] += len(inbox)
    if not state["active"] and (state["heard"] >= state["threshold"] or (me.step == 0 and me.id % FIRST == 0)):
        state["active"], state["since"] = True, me.step
        for friend in me.neighbours:
            me.send(friend, {"active": True})
    if me.id == 0:
        now = time.perf_counter()
        state["stamps"] = [state["stamps"][0] if "stamps" in state else now, now]


def begins(limits):
    return lambda me: {"active": False, "heard": 0, "since": -1, "threshold": limits[me.id]}


def main():
    limits = thresholds()
    result = ray_messaging.run(
        person,
        agents=len(limits),
        until=STEPS,
        graph=edges(),
        start=begins(limits),
        progress=False,
    )
    states = result.states.values()
    print(json.dumps([sum(each["active"] for each in states), sum(each["since"] for each in states)]))


if __name__ == "__main__":
    main()
