"""A program on one of the hosts: groups that talk by handles, without steps, while the network may be cut.

python talk.py JSON, with `ray` and `groups`. It prints lines of JSON: the groups' hosts once all have heard each other,
and what `messaging.health()` says when an empty line comes on stdin. When "end" comes, each group sends further
messages, and the result, with the health then, is printed once all messages that were acknowledged have arrived.
"""

import itertools
import json
import sys
import threading
import time

import ray

from ray_messaging import Messaging
from ray_messaging.cluster.ray_internals import actor_facts
from ray_messaging.errors import MessagingError

PAUSE_S = 0.05
MORE = 20  # how many messages of each group must be acknowledged before and after the fault


def say(**facts):
    print(json.dumps(facts), flush=True)  # noqa: T201


class Talker:
    """A group whose agent sends numbers to the next group's agent, and hears those of the group before."""

    def __init__(self, group, me, other):
        self.group, self._me, self._other = group, me, other
        self.acknowledged, self.errors, self.heard, self.not_committed = [], [], [], []
        self.ended = threading.Event()
        for work in (self._send, self._hear):
            threading.Thread(target=work, daemon=True).start()

    def _send(self):
        for number in itertools.count():
            if self.ended.is_set():
                return
            began = time.monotonic()
            try:
                receipt = self.group.send(self._me, self._other, {"n": number})
            except MessagingError as error:
                took_s = time.monotonic() - began
                self.errors.append({"n": number, "error": f"{type(error).__name__}: {error}", "took_s": took_s})
            else:
                assert receipt.sent, receipt
                self.acknowledged.append(number)
            time.sleep(PAUSE_S)

    def _hear(self):
        while True:
            found = []
            try:
                with self.group.fetch_messages(timeout=1.0) as messages:
                    found = [message.payload["n"] for message in messages]
                self.heard += found
            except MessagingError as error:  # the messages come again
                self.not_committed.append(f"{type(error).__name__}: {error}")


def host_of(group, hosts):
    return hosts.get(actor_facts(group.actor)[2], "?")


def all_have(talkers, counts):
    return all(len(talker.acknowledged) >= counts[name] for name, talker in talkers.items())


def wait_until(condition):
    while not condition():
        time.sleep(PAUSE_S)


def main(options):
    ray.init(address=options["ray"], log_to_driver=False)
    names = [f"group{number}" for number in range(options["groups"])]
    with Messaging.start("talk") as messaging:
        hosts = {node["NodeID"]: node["NodeManagerHostname"] for node in ray.nodes()}
        messaging.create_groups({name: [number] for number, name in enumerate(names)})
        groups = [messaging.group(name) for name in names]
        talkers = {
            name: Talker(group, number, (number + 1) % len(names))
            for number, (name, group) in enumerate(zip(names, groups, strict=True))
        }
        wait_until(lambda: all_have(talkers, dict.fromkeys(names, MORE)))
        say(begun={name: host_of(group, hosts) for name, group in zip(names, groups, strict=True)})
        for line in sys.stdin:
            if line == "end\n":
                break
            began = time.monotonic()
            health = messaging.health()
            problems = [str(each) for each in health.problems]
            say(health=health.level, took_s=time.monotonic() - began, problems=problems)
        end(talkers)
        after = messaging.health()
        say(
            after=[after.level, *map(str, after.problems)],
            ended={name: host_of(talker.group, hosts) for name, talker in talkers.items()},
            acknowledged={name: talker.acknowledged for name, talker in talkers.items()},
            heard={name: talker.heard for name, talker in talkers.items()},
            errors={name: talker.errors for name, talker in talkers.items()},
            not_committed={name: talker.not_committed for name, talker in talkers.items()},
        )


def end(talkers):
    """Wait until each group has sent again, and until all that was acknowledged is heard."""
    counts = {name: len(talker.acknowledged) + MORE for name, talker in talkers.items()}
    wait_until(lambda: all_have(talkers, counts))
    for talker in talkers.values():
        talker.ended.set()
    each = [*talkers.values()]
    for sender, hearer in zip(each, [*each[1:], each[0]], strict=True):
        wait_until(lambda sender=sender, hearer=hearer: {*sender.acknowledged} <= {*hearer.heard})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
