"""A few experiments for the whole session, and separate agents for each test."""

import itertools
import uuid
from contextlib import ExitStack, suppress

import pytest
import ray
from redis import Redis
from support.cluster import EmptyGroups, control, emptied
from support.step_society import SEED

from ray_messaging import Messaging, MessagingConfig, Steps, rules
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
    groups = messaging.create_groups({"west": range(10), "east": range(10, 20)})
    assert [(name, *group.agents) for name, group in groups.items()] == [("west", *range(10)), ("east", *range(10, 20))]


@pytest.fixture
def logged(logged_experiment):
    """Give an experiment with a log and empty groups of ten, west (agent 0 may write to nobody) and east."""
    return logged_experiment, emptied(logged_experiment, "west"), emptied(logged_experiment, "east")


@pytest.fixture
def ruled(ruled_experiment):
    """Give an experiment with rules for tests to change, and empty groups of ten, west and east."""
    return ruled_experiment, emptied(ruled_experiment, "west"), emptied(ruled_experiment, "east")


@pytest.fixture
def asked(ruled):
    """Give the same experiment for questions, with a rule that blocks secrets."""
    control(ruled[0], "insert_rule", rules.Pattern(["secret"]))
    yield ruled
    control(ruled[0], "pop_rule")
    control(ruled[0], "reset_violation_counts")


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


@pytest.fixture(scope="session")
def hasty(ray_cluster):
    """Give an experiment with short delivery leases, in which a group sends for any agent."""
    settings = MessagingConfig(loan_s=0.5, inbox_messages=40, complete_messages=500, strict_senders=False)
    with Messaging.start(f"hasty-{uuid.uuid4().hex[:8]}", settings=settings) as started:
        yield started


@pytest.fixture
def start(ray_cluster):
    """Return a function that starts an experiment of the test's own with groups west (0 to 9) and east (10 to 19)."""
    started = []

    def start(*listed, redis=None, **settings):
        exp_id = f"own-{uuid.uuid4().hex[:8]}"
        started.append(Messaging.start(exp_id, rules=listed, settings=MessagingConfig(**settings), redis=redis))
        return started[-1], started[-1].create_group("west", range(10)), started[-1].create_group("east", range(10, 20))

    yield start
    for messaging in started:
        messaging.shutdown()


@pytest.fixture
def start_steps(by_value):
    """Return a function that starts an experiment with steps, which ends with the test; `steps`: of Steps."""
    with ExitStack() as ends:

        def start(*, log_dir=None, calls=None, **steps):
            settings = Steps(seed=SEED, digest=True, **steps)
            made = Messaging.start(f"steps-{uuid.uuid4().hex[:8]}", steps=settings, log_dir=log_dir, calls=calls)
            return ends.enter_context(made)

        yield start


@pytest.fixture
def client(redis_config):
    """Give a client of the server of a user's own."""
    with Redis(redis_config.server, redis_config.port, password=redis_config.password) as client:
        yield client


@pytest.fixture(scope="module")
def by_value(request, ray_cluster):
    """Pickle functions of the test's module by value: workers cannot import it."""
    ray.cloudpickle.register_pickle_by_value(request.module)
    yield
    ray.cloudpickle.unregister_pickle_by_value(request.module)


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
