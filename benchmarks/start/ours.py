"""The program in ours: `python -m benchmarks.start.ours BEGAN STEPS` prints its parts."""

import logging
import sys
import time
from typing import Any

import ray

from benchmarks.start.watch import Stopwatch
from benchmarks.steps.model import AGENTS, MEMBERS, MESSAGES, TO, next_mood
from ray_messaging import Messaging, Steps


def person(me: Any, inbox: Any) -> None:
    """Run the model for one agent; the first one notes when its last steps began."""
    if me.id == 0:
        me.state["stamps"] = [*me.state.get("stamps", []), time.perf_counter()][-me.shared :]
    heard = [m.payload["mood"] for m in inbox]
    me.state["mood"] = mood = next_mood(me.state.get("mood", 0.0), heard, me.rng.normal())
    for friend in TO[me.id]:
        me.send(friend, {"mood": mood})


def main() -> None:
    """Start an experiment, run the steps, and as many again. Raises RuntimeError where messages are missing."""
    watch = Stopwatch()
    watch.lap("imports")
    ray.init(address="local", include_dashboard=False, logging_level=logging.ERROR)
    watch.lap("ray.init")
    steps = int(sys.argv[2])
    messaging = Messaging.start("start", steps=Steps(seed=7))
    watch.lap("Messaging.start")
    groups = {f"group{number}": members for number, members in enumerate(MEMBERS)}
    for part, until in (("first run", steps), ("second run", 2 * steps)):
        result = messaging.run(person, agents=AGENTS, groups=groups, until=until, shared=steps, progress=False)
        stamps = result.states[0]["stamps"]
        taken = watch.lap(part)
        # A stamp is the begin of a step, so the last one's end is not among them.
        watch.note(f"{part}, beyond its steps", taken - (stamps[-1] - stamps[0]) * steps / (steps - 1))
    if result.fates["delivered"] != 2 * steps * MESSAGES:
        raise RuntimeError(f"messages are missing: {result.fates}")
    messaging.shutdown()
    ray.shutdown()
    watch.lap("end")
    watch.show()


if __name__ == "__main__":
    main()
