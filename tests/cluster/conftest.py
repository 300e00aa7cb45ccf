"""A few experiments for the whole session, and separate agents for each test."""

import itertools
import uuid

import pytest
from support.cluster import control, new_handle

from ray_messaging import Messaging, rules


@pytest.fixture(scope="session")
def messaging(ray_cluster):
    """Give the experiment that most tests share, on the embedded server."""
    with Messaging.start(f"shared-{uuid.uuid4().hex[:8]}") as started:
        yield started


@pytest.fixture(scope="session")
def logged(ray_cluster, tmp_path_factory):
    """Give an experiment with a log and groups of ten, west (agent 0 may write to nobody) and east."""
    silenced = [rules.BlackList([(0, None)])]
    log_dir = tmp_path_factory.mktemp("log") / "events"
    with Messaging.start(f"logged-{uuid.uuid4().hex[:8]}", rules=silenced, log_dir=log_dir) as started:
        yield started, started.create_group("west", range(10)), started.create_group("east", range(10, 20))


@pytest.fixture(scope="session")
def ruled(ray_cluster):
    """Give an experiment with rules for tests to change, and groups of ten, west and east."""
    with Messaging.start(f"ruled-{uuid.uuid4().hex[:8]}") as started:
        yield started, started.create_group("west", range(10)), started.create_group("east", range(10, 20))


@pytest.fixture
def town(ruled):
    """Return a function that sets the experiment's rules; afterwards rules, counters and messages are cleared."""
    messaging, west, east = ruled

    def give(*listed):
        for rule in listed:
            control(messaging, "insert_rule", rule)
        return messaging, new_handle(west), new_handle(east)

    yield give
    while control(messaging, "rules"):
        control(messaging, "pop_rule")
    control(messaging, "reset_violation_counts")
    for group in (new_handle(west), new_handle(east)):
        while group.fetch():
            pass
        group.ack()


_numbers = itertools.count()


@pytest.fixture
def make_group():
    """Return a function that makes a group of agents that no other test has; it is removed at the end."""
    made = []

    def make(messaging, agents=4, **options):
        number = next(_numbers)
        ids = range(number * 1000, number * 1000 + agents) if isinstance(agents, int) else agents
        group = messaging.create_group(f"group-{number}", ids, **options)
        made.append((messaging, group))
        return group

    yield make
    for messaging, group in made:
        messaging.remove_group(group.name)


@pytest.fixture(scope="session")
def pairs():
    """Keep used groups empty for the next test: making a group takes half a second."""
    return []


@pytest.fixture
def pair(messaging, pairs):
    """Give new handles of two groups of four agents each, with empty mailboxes."""
    if not pairs or any(messaging.stats()["waiting"][group.name] for group in pairs[-1]):
        number = len(pairs)
        low = 1_000_000 + 10 * number
        west = messaging.create_group(f"west-{number}", range(low, low + 4))
        pairs.append([west, messaging.create_group(f"east-{number}", range(low + 5, low + 9))])
    return [new_handle(group) for group in pairs[-1]]
