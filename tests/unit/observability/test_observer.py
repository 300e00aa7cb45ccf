"""An observer gets the events of its messager, and a messager without one works alike."""

from redis.exceptions import ConnectionError as RedisConnectionError

from ray_messaging import Messager, RedisConfig, rules
from ray_messaging.interception.server.interceptor import Interceptor
from ray_messaging.observability.observer import Observer
from ray_messaging.transports.connection.link import RedisLink


class Recorder(Observer):
    def __init__(self):
        self.events = []

    def batch_judged(self, messages, seconds):
        assert seconds >= 0
        self.events.append(("judged", messages))

    def messages_blocked(self, rule, messages):
        self.events.append(("blocked", rule, messages))

    def frame_written(self, mailbox, messages, nbytes):
        assert nbytes > 0
        self.events.append(("written", mailbox, messages))

    def messages_fetched(self, messages):
        self.events.append(("fetched", messages))

    def connected(self, server):
        self.events.append(("connected", server))

    def retried(self, server, error):
        self.events.append(("retried", server, str(error)))

    def of(self, kind):
        return [event[1:] for event in self.events if event[0] == kind]


def to(agent):
    return f"exps:e:agents:{agent}:agent-chat"


async def test_an_observer_gets_batches_frames_and_fetches(local):
    seen = Recorder()
    async with Messager(local, "e", name="west", observer=seen) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        for n in range(3):
            await west.send_message(to(2), {"n": n}, 1)
        fetched = 0
        while fetched < 3:
            fetched += len(await west.fetch_messages(timeout=5.0))
    assert sum(messages for (messages,) in seen.of("judged")) == 3
    assert sum(messages for _, messages in seen.of("written")) == 3
    assert {mailbox for mailbox, _ in seen.of("written")} == {"west"}
    assert sum(messages for (messages,) in seen.of("fetched")) == 3
    assert seen.of("blocked") == []


async def test_blocked_messages_are_counted_by_rule(local):
    seen = Recorder()
    found = Interceptor("e", [rules.BlackList([(1, 2)])])
    async with Messager(local, "e", found, name="west", observer=seen) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        receipts = await west.send_columns([1, 2, 1], [2, 1, 2], [{"n": 1}] * 3)
    assert [receipt.fate for receipt in receipts] == ["blocked", "delivered", "blocked"]
    assert seen.of("blocked") == [("black_list", 2)]
    assert seen.of("written") == [("west", 1)]


async def test_a_retry_on_the_server_is_an_event():
    link, seen = RedisLink(RedisConfig(server="host", port=7), 30.0), Recorder()
    link.observer = seen
    errors = [RedisConnectionError("cut"), RedisConnectionError("cut again")]

    async def attempt():
        if errors:
            raise errors.pop(0)
        return "done"

    assert await link.persist(attempt) == "done"
    assert seen.of("retried") == [("host:7", "cut"), ("host:7", "cut again")]


async def test_a_connection_is_an_event(valkey_config, exp_id):
    seen = Recorder()
    async with Messager(valkey_config, exp_id, observer=seen):
        pass
    assert len(seen.of("connected")) == 1
