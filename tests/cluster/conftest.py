"""A few experiments for the whole session, and separate agents for each test."""

import itertools
import uuid
from contextlib import suppress

import pytest
from support.cluster import EmptyGroups, control, emptied

from ray_messaging import Messaging, rules
from ray_messaging.errors import MessagingError


@pytest.fixture(scope="session")
def messaging(ray_cluster):
    """Give the experiment that most tests share, on the embedded server."""
    with Messaging.start(f"shared-{uuid.uuid4().hex[:8]}") as started:
        yield started


@pytest.fixture(scope="session")
def logged_experiment(ray_cluster, tmp_path_factory):
    silenced = [rules.BlackList([(0, None)])]
    log_dir = tmp_path_factory.mktemp("log") / "events"
    with Messaging.start(f"logged-{uuid.uuid4().hex[:8]}", rules=silenced, log_dir=log_dir) as started:
        found_town(started)
        yield started


@pytest.fixture(scope="session")
def ruled_experiment(ray_cluster):
    with Messaging.start(f"ruled-{uuid.uuid4().hex[:8]}") as started:
        found_town(started)
        yield started


def found_town(messaging):
    messaging.create_group("west", range(10))
    messaging.create_group("east", range(10, 20))


@pytest.fixture
def logged(logged_experiment):
    """Give an experiment with a log and empty groups of ten, west (agent 0 may write to nobody) and east."""
    return logged_experiment, emptied(logged_experiment, "west"), emptied(logged_experiment, "east")


@pytest.fixture
def ruled(ruled_experiment):
    """Give an experiment with rules for tests to change, and empty groups of ten, west and east."""
    return ruled_experiment, emptied(ruled_experiment, "west"), emptied(ruled_experiment, "east")


@pytest.fixture
def town(ruled):
    """Return a function that sets the experiment's rules; afterwards rules and counters are cleared."""
    messaging, west, east = ruled

    def give(*listed):
        for rule in listed:
            control(messaging, "insert_rule", rule)
        return messaging, west, east

    yield give
    while control(messaging, "rules"):
        control(messaging, "pop_rule")
    control(messaging, "reset_violation_counts")


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
def empty_groups(messaging):
    return EmptyGroups(messaging)


@pytest.fixture
def pair(empty_groups):
    """Give new handles of two groups of four agents each, with empty mailboxes."""
    handles = [empty_groups.give("west"), empty_groups.give("east")]
    yield handles
    for handle in handles:
        with suppress(MessagingError):  # a test may end both
            handle.ack()
