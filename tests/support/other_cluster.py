"""A second Ray cluster on this machine: a driver in a process of its own, with an experiment."""

import asyncio
import json
import multiprocessing
import os
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path


class OtherCluster:
    """A driver with a Ray cluster of its own, and the methods of `Driver`; errors are raised here."""

    def __init__(self):
        # A short path: Ray puts sockets below it.
        self._folder = tempfile.TemporaryDirectory(prefix="ray_", ignore_cleanup_errors=True)
        self._process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (self._folder.name,))

    def __getattr__(self, name):
        return lambda *args, **options: self._process.submit(_call, name, args, options).result()

    def close(self):
        self._process.submit(_end).result()
        self._process.shutdown()
        self._folder.cleanup()


class Driver:
    """The calls of the test, in the other process."""

    def __init__(self):
        self.messaging, self.groups = None, {}

    def start(self, exp_id, redis, *, banned=(), on_existing="error", log_dir=None):
        from ray_messaging import Messaging, MessagingConfig, rules

        self.messaging = Messaging.start(
            exp_id,
            redis=redis,
            rules=[rules.BlackList(banned)],
            on_existing=on_existing,
            log_dir=log_dir,
            settings=MessagingConfig(send_timeout_s=5, interceptor_timeout_s=5, strict_senders=False),
        )
        self.groups = {}

    def group(self, name, agents):
        self.groups[name] = self.messaging.create_group(name, agents)

    def send(self, name, from_id, to_id, texts):
        """Send by a group of ours."""
        return self.groups[name].send_columns(from_id, [to_id] * len(texts), _payloads(texts)).fates.tolist()

    def send_anew(self, from_id, to_id, texts):
        """Send by a messager that is opened for it."""
        from ray_messaging import Messager

        messaging, settings = self.messaging, self.messaging._connection.experiment.settings

        async def send():
            async with Messager(messaging.redis, messaging.exp_id, messaging.interceptor, settings=settings) as sender:
                return (await sender.send_columns(from_id, [to_id] * len(texts), _payloads(texts))).fates.tolist()

        return asyncio.run(send())

    def fetch(self, name, count):
        """Return the texts of `count` messages, and of any others that are there."""
        found = []
        while len(found) < count:
            found += self.groups[name].fetch_messages(timeout=30)
        return [message.payload["text"] for message in (*found, *self.groups[name].fetch_messages())]

    def kill_interceptor(self):
        """Kill its process; Ray starts it again."""
        from support.cluster import kill_and_wait

        kill_and_wait(self.messaging.interceptor)

    def logged(self):
        """Return the texts in the event log."""
        return texts_of(self.messaging.log)

    def problems(self):
        return [f"{finding.what}: {finding.value}" for finding in self.messaging.health().problems]

    def shutdown(self, *, erase=False):
        messaging, self.messaging = self.messaging, None
        if messaging is not None:
            messaging.shutdown(erase=erase)


def _payloads(texts):
    return [{"text": text} for text in texts]


def texts_of(log):
    """Return the texts of the messages in an event log."""
    return [json.loads(payload)["text"] for payload in log.query().column("payload").to_pylist()]


# -- in the other process ----------------------------------------------------------------------------------------------

_driver = Driver()


def _begin(folder):
    for name in [name for name in os.environ if name.startswith(("RAY_ADDRESS", "PYTEST"))]:
        del os.environ[name]
    tests = Path(__file__).parents[1]
    os.environ |= {"RAY_TMPDIR": folder, "PYTHONPATH": f"{tests.parent}:{tests}"}
    from support.bare_ray import start_ray

    start_ray(num_cpus=1, object_store_memory=80 * 2**20)


def _call(name, args, options):
    return getattr(_driver, name)(*args, **options)


def _end():
    import ray

    _driver.shutdown()
    ray.shutdown()
