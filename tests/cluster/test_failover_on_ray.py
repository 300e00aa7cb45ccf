"""Experiments on Ray over Sentinels or a cluster: the primary is killed in the middle of their traffic and steps."""

import os
import signal
import sys
import time
from functools import partial

import pytest
import ray
from faults import ray_traffic
from faults.checker import check
from faults.ledger import Growing, read_ledger
from faults.ray_support import by_value
from faults.ray_traffic import Receiver, Sender, rows_of
from support.cluster import PATIENCE_S, Gate, control, pid_of, wait_for
from support.patience import Busy
from support.replicated import ReplicatedService
from support.servers import PASSWORD
from support.slots import ClusterService
from support.step_society import AGENTS, SEED, STEPS, messages_of, person, sequential

from ray_messaging import EventLog, Messaging, MessagingConfig, Steps, rules
from ray_messaging.config import ShardsConfig

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("ray_cluster")]

WEST, EAST = range(10), range(10, 20)
SILENCED, BANNED = (4, 14), (2, 12)  # from the start; in the middle
PAIRS = ((1, 11), BANNED, (13, 3), SILENCED)
WAITING = MessagingConfig(wait_replicas=1, send_timeout_s=PATIENCE_S)
THIS_MACHINE = ("disk", "clock", "trip")  # findings about its load are no part of a test


@pytest.fixture(autouse=True)
def for_workers():
    by_value()
    for module in (ray_traffic, sys.modules[__name__]):
        ray.cloudpickle.register_pickle_by_value(module)
    yield
    for module in (ray_traffic, sys.modules[__name__]):
        ray.cloudpickle.unregister_pickle_by_value(module)


@pytest.fixture(params=[1, 2, "cluster"], ids=["one replica", "two replicas", "a cluster"])
def service(request, tmp_path, exp_id):
    folder = tmp_path / "service"
    started = (
        ReplicatedService(folder, binary="valkey", replicas=request.param)
        if isinstance(request.param, int)
        else ClusterService(folder, exp_id=exp_id, shards=3 if request.param == "bodies" else 1)
    )
    with started as service:
        yield service


def url_of(config):
    password = PASSWORD.replace(" ", "%20")
    if config.cluster:
        return f"redis+cluster://:{password}@{','.join(config.cluster)}"
    return f"redis+sentinel://:{password}@{','.join(config.sentinels)}/{config.service}"


def lose_primary(service, *, cut_off=False, at_once=lambda: None, before_it_is_back=lambda: None):
    """Kill the primary, and bring it back as a replica of the one that took its place.

    `cut_off`: replicas and Sentinels lose it first, while its clients keep it.
    """
    old = service.primary
    service.cut_off(old) if cut_off else old.kill()
    at_once()
    service.failed_over()
    old.kill()
    before_it_is_back()
    service.join(old)


def troubles(messaging):
    health = messaging.health()
    return [problem.what for problem in health.problems if not any(word in problem.what for word in THIS_MACHINE)]


# -- messages -----------------------------------------------------------------------------------------------------


@ray.remote(num_cpus=0, max_retries=0)
def work(gate, kind, *args):
    """Send or receive until the gate opens; return the met errors."""
    worker = kind(*args)
    worker.start()
    ray.get(gate.ask.remote("enough"))
    worker.stop()
    return list(map(repr, worker.met))


class Traffic:
    """Tasks that send, one for each pair, and tasks that receive, one for each group."""

    def __init__(self, folder, messaging):
        self.west, self.east = messaging.create_groups({"west": WEST, "east": EAST}).values()
        self.gates = Gate.remote(), Gate.remote()
        self.ledgers = [folder / f"ledger-{pair[0]}-{pair[1]}" for pair in PAIRS]
        self.inboxes = [folder / "inbox-west", folder / "inbox-east"]
        home = {pair: self.west if pair[0] in WEST else self.east for pair in PAIRS}
        self.sending = [work.remote(self.gates[0], Sender, folder, home[pair], pair) for pair in PAIRS]
        self.receiving = [
            work.remote(self.gates[1], Receiver, folder, group, group.name) for group in (self.west, self.east)
        ]
        self._sent, self._received = list(map(Growing, self.ledgers[:-1])), list(map(Growing, self.inboxes))

    def goes_on(self, rows=100):
        """Wait until each sender but the silenced one has more receipts, and each receiver more messages."""
        goals = [(each, each.read().settled + rows) for each in self._sent]
        wait_for(lambda: all(each.read().settled >= goal for each, goal in goals), "further receipts")
        goals = [(each, each.read().fetched + 1) for each in self._received]
        wait_for(lambda: all(each.read().fetched >= goal for each, goal in goals), "further messages")

    def finish(self):
        """End the senders, and then the receivers when all that was acknowledged has come; return the met errors."""
        ray.get(self.gates[0].open.remote())
        met = ray.get(self.sending, timeout=2 * PATIENCE_S)
        wanted = sum(send.fate == "delivered" for path in self.ledgers for send in read_ledger(path))
        wait_for(lambda: sum(each.read().fetched for each in self._received) >= wanted, "all messages")
        ray.get(self.gates[1].open.remote())
        met += ray.get(self.receiving, timeout=2 * PATIENCE_S)
        return [error for errors in met for error in errors]


def test_messages_arrive_once_and_in_order_although_the_primary_is_lost_twice(service, tmp_path, exp_id):
    listed = rules.BlackList([SILENCED]), rules.RateLimit(per_round=10**9)
    with Messaging.start(
        exp_id,
        redis=url_of(service.config),
        settings=WAITING,
        rules=listed,
        log_dir=tmp_path / "log",
    ) as messaging:
        traffic = Traffic(tmp_path, messaging)
        traffic.goes_on()
        assert troubles(messaging) == []
        lonely = len(service.replicas) == 1  # the new primary has no replica then
        told = partial(wait_for, lambda: any("server replicas" in what for what in troubles(messaging)), "the finding")
        lose_primary(service, before_it_is_back=told if lonely else lambda: None)
        traffic.goes_on()
        # A rule that changes while there is no primary that may take it: from its return on nothing of the pair passes.
        changes = []
        change = partial(messaging.interceptor.add_to_black_set.remote, [BANNED])
        lose_primary(service, cut_off=True, at_once=lambda: changes.append(change()))
        ray.get(changes, timeout=PATIENCE_S)
        changed_at = time.time()
        traffic.goes_on()
        wait_for(lambda: not troubles(messaging), "health")
        assert traffic.finish() == []
        account = check(traffic.ledgers, traffic.inboxes, rows_of(messaging.log))
        assert account.flaws == {}, str(account)
        assert (account.unknown, account.refused) == (0, 0), str(account)
        assert control(messaging, "violation_counts")[SILENCED[0]] == len(read_ledger(traffic.ledgers[-1]))
        after = [send.fate for send in read_ledger(traffic.ledgers[1]) if send.begun_at > changed_at]
        assert set(after) == {"blocked"}
        assert account.blocked > len(after)
        assert messaging.stats()["waiting"] == {"west": 0, "east": 0}
    balance = EventLog.open(tmp_path / "log").balance()
    assert (balance.sends, balance.fates) == (
        account.sent,
        {"delivered": account.acknowledged, "blocked": account.blocked, "published": 0, "undeliverable": 0},
    )


def test_actors_that_die_with_the_primary_come_back_over_the_new_one(service, tmp_path, exp_id):
    with Messaging.start(
        exp_id,
        redis=service.config,
        settings=WAITING,
        rules=[rules.BlackList([SILENCED]), rules.RateLimit(per_round=10**9)],
        log_dir=tmp_path / "log",
    ) as messaging:
        traffic = Traffic(tmp_path, messaging)
        traffic.goes_on()
        for victims in ((messaging.interceptor, traffic.west.actor), (messaging.log_actor, traffic.east.actor)):
            pids = list(map(pid_of, victims))
            lose_primary(service, at_once=lambda pids=pids: [os.kill(pid, signal.SIGKILL) for pid in pids])
            traffic.goes_on()
        wait_for(lambda: not troubles(messaging), "health")
        traffic.finish()
        account = check(traffic.ledgers, traffic.inboxes, rows_of(messaging.log))
        assert account.flaws == {}, str(account)
        # Of a call that the group did not live to answer the sender knows nothing, and it was counted.
        counted = control(messaging, "violation_counts")[SILENCED[0]]
        assert account.blocked <= counted <= len(read_ledger(traffic.ledgers[-1]))
        messaging.log.balance()


# -- steps --------------------------------------------------------------------------------------------------------


class Run(Busy):
    """A thread that runs the model to its end."""

    def __init__(self, messaging):
        super().__init__()
        self.messaging, self.result = messaging, None

    def work(self):
        self.result = self.messaging.run(person, agents=AGENTS, groups=2, until=STEPS)


def started(name, **options):
    return Messaging.start(name, steps=Steps(seed=SEED, digest=True), **options)


@pytest.mark.parametrize(
    "service",
    [1, 2, "cluster", "bodies"],
    ids=["one replica", "two replicas", "a cluster", "bodies all over it"],
    indirect=True,
)
def test_a_run_over_a_lost_primary_gives_the_digests_of_an_undisturbed_one(service, tmp_path, exp_id):
    """Where bodies are spread, the primary that orders is lost, and one that carries bodies."""
    spread_over, lost, config = getattr(service, "shards", 1) > 1, {2: 0, 5: 0}, service.config
    if spread_over:
        lost, config = {2: 1, 5: 0}, ShardsConfig.of_cluster(config).model_copy(update={"body_bytes": 64})
    with started(f"undisturbed-{exp_id}") as messaging:
        wanted = messaging.run(person, agents=AGENTS, groups=2, until=STEPS)
        history = messaging.steps.history_digest(STEPS - 1)
    with started(exp_id, redis=config, settings=WAITING, log_dir=tmp_path / "log") as messaging:
        messaging.steps.pause()
        run = Run(messaging)
        run.start()
        for number in range(STEPS):
            messaging.steps.advance()
            if number in lost:
                if spread_over:
                    service.serve(exp_id, lost[number])
                lose_primary(service)
            messaging.steps.wait(number + 1, timeout=PATIENCE_S)
        run.stop()
        assert run.result.states == wanted.states
        assert run.result.digests == wanted.digests
        assert run.result.fates == wanted.fates == {"delivered": messages_of(STEPS)}
        assert messaging.steps.history_digest(STEPS - 1) == history
        wait_for(lambda: not troubles(messaging), "health")
    log = EventLog.open(tmp_path / "log")
    assert [log.digest(step) for step in range(STEPS)] == sequential()[1]
    assert log.balance().sends == messages_of(STEPS)
