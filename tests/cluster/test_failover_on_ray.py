"""Experiments on Ray over Sentinels or a cluster: the primary is killed in the middle of their traffic and steps."""

import os
import signal
import time
from functools import partial

import pytest
import ray
from faults.ledger import read_ledger
from faults.ray_support import a_town
from faults.ray_traffic import traffic_in
from support.cluster import PATIENCE_S, control, pid_of, wait_for
from support.patience import Busy
from support.replicated import ReplicatedService
from support.servers import PASSWORD
from support.slots import ClusterService
from support.step_society import AGENTS, SEED, STEPS, messages_of, person, sequential

from ray_messaging import EventLog, Messaging, MessagingConfig, Steps, rules
from ray_messaging.config import ShardsConfig

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("by_value")]

SILENCED, BANNED = (4, 14), (2, 12)  # from the start; in the middle
PAIRS = ((1, 11), BANNED, (13, 3), SILENCED)
RULES = rules.BlackList([SILENCED]), rules.RateLimit(per_round=10**9)
WAITING = {"wait_replicas": 1, "send_timeout_s": PATIENCE_S}
THIS_MACHINE = ("disk", "clock", "trip")  # findings about its load are no part of a test


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


def test_messages_arrive_once_and_in_order_although_the_primary_is_lost_twice(service, tmp_path, exp_id):
    with a_town(*RULES, exp_id=exp_id, redis=url_of(service.config), log_dir=tmp_path / "log", **WAITING) as town:
        messaging = town.messaging
        with traffic_in(town, tmp_path, PAIRS) as traffic:
            assert troubles(messaging) == []
            lonely = len(service.replicas) == 1  # the new primary has no replica then
            told = partial(
                wait_for, lambda: any("server replicas" in what for what in troubles(messaging)), "a finding"
            )
            lose_primary(service, before_it_is_back=told if lonely else lambda: None)
            traffic.goes_on()
            # A rule that changes while no primary may take it: from its return on nothing of the pair passes.
            changes = []
            change = partial(messaging.interceptor.add_to_black_set.remote, [BANNED])
            lose_primary(service, cut_off=True, at_once=lambda: changes.append(change()))
            ray.get(changes, timeout=PATIENCE_S)
            changed_at = time.time()
            traffic.goes_on()
            wait_for(lambda: not troubles(messaging), "health")
        assert [error for thread in (*traffic.senders, *traffic.receivers.values()) for error in thread.met] == []
        account = traffic.account()
        assert account.flaws == {}, str(account)
        assert (account.unknown, account.refused) == (0, 0), str(account)
        silenced, banned = (read_ledger(traffic.senders[PAIRS.index(pair)].ledger.path) for pair in (SILENCED, BANNED))
        assert control(messaging, "violation_counts")[SILENCED[0]] == len(silenced)
        after = [send.fate for send in banned if send.begun_at > changed_at]
        assert set(after) == {"blocked"}
        assert account.blocked > len(after)
        assert messaging.stats()["waiting"] == {"west": 0, "east": 0}
    balance = EventLog.open(tmp_path / "log").balance()
    assert (balance.sends, balance.fates) == (
        account.sent,
        {"delivered": account.acknowledged, "blocked": account.blocked, "published": 0, "undeliverable": 0},
    )


def test_actors_that_die_with_the_primary_come_back_over_the_new_one(service, tmp_path, exp_id):
    with a_town(*RULES, exp_id=exp_id, redis=service.config, log_dir=tmp_path / "log", **WAITING) as town:
        messaging = town.messaging
        with traffic_in(town, tmp_path, PAIRS) as traffic:
            for victims in ((messaging.interceptor, town.west.actor), (messaging.log_actor, town.east.actor)):
                pids = list(map(pid_of, victims))
                lose_primary(service, at_once=lambda pids=pids: [os.kill(pid, signal.SIGKILL) for pid in pids])
                traffic.goes_on()
            wait_for(lambda: not troubles(messaging), "health")
        account = traffic.account()
        assert account.flaws == {}, str(account)
        # Of a call that the group did not live to answer the sender knows nothing, and it was counted.
        counted = control(messaging, "violation_counts")[SILENCED[0]]
        assert account.blocked <= counted <= len(read_ledger(traffic.senders[PAIRS.index(SILENCED)].ledger.path))
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
    with started(exp_id, redis=config, settings=MessagingConfig(**WAITING), log_dir=tmp_path / "log") as messaging:
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
