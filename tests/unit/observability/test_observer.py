"""An observer gets the events of its messager."""

from redis.exceptions import ConnectionError as RedisConnectionError

from ray_messaging import Messager, RedisConfig, rules
from ray_messaging.interception.interceptor.interceptor import Interceptor
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


async def test_an_observer_gets_each_event_once(local):
    seen = Recorder()
    blocking = Interceptor("e", [rules.BlackList([(2, 1)])])
    async with Messager(local, "e", blocking, name="west", observer=seen) as west:
        await west.host_agents([1, 2], ["agent-chat"])
        await west.send_columns([1, 2, 1, 2], [2, 1, 2, 1], [{"n": 1}] * 4)
        assert len(await west.fetch_messages(timeout=30)) == 2
    assert sorted(seen.events) == [
        ("blocked", "black_list", 2),
        ("connected", f"{local.server}:{local.port}"),
        ("fetched", 2),
        ("judged", 4),
        ("written", "west", 2),
    ]


async def test_a_retry_on_the_server_is_an_event():
    link, seen = RedisLink(RedisConfig(server="host", port=7), 30.0), Recorder()
    link.observer = seen
    errors = [RedisConnectionError("cut"), RedisConnectionError("cut again")]

    async def attempt():
        if errors:
            raise errors.pop(0)
        return "done"

    assert await link.persist(attempt) == "done"
    assert seen.events == [("retried", "host:7", "cut"), ("retried", "host:7", "cut again")]
