"""A program on one of the hosts: a run in which each agent knows what must be in its inbox.

python society.py JSON, with `ray`, `exp_id`, `on_existing`, `steps`, `pause_s`, `settings` and `redis`. It prints lines
of JSON: the groups' hosts once the run has begun, what `messaging.health()` says whenever a line comes on stdin, and
the result or the error.
"""

import hashlib
import json
import socket
import sys
import threading
import time
from contextlib import suppress

import ray

from ray_messaging import Messaging, MessagingConfig, Steps
from ray_messaging.errors import MessagingError

AGENTS, GROUPS, BEGUN = 60, 6, 4
SHIFTS, REPEATED = (1, 7, 31), (0, 1)  # each agent sends to three others, twice to each


def person(me, inbox):
    """Count what was lost, came twice or out of order, and the longest time between two steps (one kernel's clock)."""
    now, state = time.monotonic(), me.state
    expected = sorted(((me.id - shift) % AGENTS, n) for shift in SHIFTS for n in REPEATED) if me.step else []
    found = [(message.from_id, message.payload["n"]) for message in inbox if message.payload["step"] == me.step - 1]
    state["lost"] = state.get("lost", 0) + len(set(expected) - set(found))
    state["twice"] = state.get("twice", 0) + len(inbox) - len(set(found))
    in_order = all(found.index((sender, 0)) < found.index((sender, 1)) for sender, n in expected[::2] if found)
    state["disorder"] = state.get("disorder", 0) + (not in_order)
    state["still_s"] = max(state.get("still_s", 0.0), now - state.get("at", now))
    state["at"] = now
    if me.id % (AGENTS // GROUPS) == 0:
        time.sleep(me.shared["pause_s"])
    for shift in SHIFTS:
        for n in REPEATED:
            me.send((me.id + shift) % AGENTS, {"n": n, "step": me.step})


def digest_of(result):
    """Return one digest of what was sent in all steps."""
    return hashlib.sha256("".join(result.digests[step] for step in range(result.steps)).encode()).hexdigest()[:12]


def where():
    """Return the groups' actors, by host."""
    from ray._private.state import actors

    hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
    found = {}
    for actor in actors().values():
        if actor["State"] == "ALIVE":
            kind = actor["ActorClassName"].rpartition(".")[2]
            found.setdefault(hosts.get(actor["Address"]["NodeID"], "?"), []).append(kind)
    return {host: sorted(kinds) for host, kinds in sorted(found.items())}


def say(**facts):
    print(json.dumps(facts), flush=True)  # noqa: T201


def tell_begin(messaging):
    while True:
        with suppress(MessagingError):
            if messaging.steps.progress().sealed >= BEGUN:
                break
        time.sleep(0.05)
    say(begun=where())


def tell_health(messaging):
    for _ in sys.stdin:
        began = time.monotonic()
        health = messaging.health()
        say(health=health.level, took_s=time.monotonic() - began, problems=[str(each) for each in health.problems])


def main(options):
    ray.init(address=options["ray"], log_to_driver=False)
    messaging = Messaging.start(
        options["exp_id"],
        redis=options["redis"],
        on_existing=options["on_existing"],
        steps=Steps(digest=True),
        settings=MessagingConfig(**options["settings"]),
    )
    for work in (tell_begin, tell_health):
        threading.Thread(target=work, args=(messaging,), daemon=True).start()
    shared = {"pause_s": options["pause_s"]}
    try:
        result = messaging.run(
            person, agents=range(AGENTS), groups=GROUPS, until=options["steps"], shared=shared, progress=True
        )
        states = result.states.values()
        say(
            steps=result.steps,
            fates=dict(result.fates),
            still_s=max(state["still_s"] for state in states),
            digest=digest_of(result),
            **{what: sum(state[what] for state in states) for what in ("lost", "twice", "disorder")},
        )
    except Exception as error:  # noqa: BLE001 - the one who has started this reads it
        say(error=f"{type(error).__name__}: {error}", host=socket.gethostname())
    messaging.shutdown()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
