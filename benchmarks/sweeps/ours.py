"""The sweep by `ray_messaging.batch_run`: `python -m benchmarks.sweeps.ours` prints a line of JSON."""

import json

import ray_messaging
from benchmarks.contagion.world import STEPS, edges, thresholds
from benchmarks.sweeps.design import FIRSTS, PROCESSES


def person(me, inbox, *, first):
    state = me.state
    state["heard"] += len(inbox)
    if not state["active"] and (state["heard"] >= state["threshold"] or (me.step == 0 and me.id % first == 0)):
        state["active"], state["since"] = True, me.step
        for friend in me.neighbours:
            me.send(friend, {"active": True})


def main():
    limits = thresholds()
    study = ray_messaging.batch_run(
        person,
        {"first": FIRSTS},
        agents=len(limits),
        until=STEPS,
        graph=edges(),
        shared=limits,
        start=lambda me: {"active": False, "heard": 0, "since": -1, "threshold": me.shared[me.id]},
        outcomes={"since": lambda result: sum(each["since"] for each in result.states.values())},
        workers=PROCESSES,
        progress=False,
    )
    table = study.to_pandas()
    print(json.dumps(dict(zip(table["first"].tolist(), table["since"].tolist(), strict=True))))


if __name__ == "__main__":
    main()
