"""A second Ray cluster on this machine: a driver in a process of its own, with an experiment."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path


class OtherCluster:
    """A driver with a Ray cluster of its own, and the methods of `Driver`.

    An error of a call is raised here as a `Told`, with the error's class and text.
    """

    def __init__(self):
        # A short path: Ray puts sockets below it.
        self._folder = tempfile.TemporaryDirectory(prefix="ray_", ignore_cleanup_errors=True)
        tests = Path(__file__).parents[1]
        env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_ADDRESS", "PYTEST"))}
        env |= {"RAY_TMPDIR": self._folder.name, "PYTHONPATH": f"{tests.parent}:{tests}"}
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
        )
        assert self._process.stdout.readline() == "ready\n", "no second Ray cluster could be started"

    def __getattr__(self, name):
        def call(*args, **options):
            print(json.dumps([name, args, options]), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
            assert line, f"the other cluster's driver ended at {name}"
            value, error = json.loads(line)
            if error is not None:
                raise Told(*error)
            return value

        return call

    def close(self):
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._folder.cleanup()


class Told(Exception):
    """An error of the other driver: the name of its class, and its text."""

    def __init__(self, kind, text):
        super().__init__(f"{kind}: {text}")


class Driver:
    """The calls of the test, in the other process."""

    def __init__(self):
        self.messaging, self.groups = None, {}

    def start(self, exp_id, redis, *, banned=(), on_existing="error", log_dir=None):
        from ray_messaging import Messaging, MessagingConfig, RedisConfig, rules

        self.messaging = Messaging.start(
            exp_id,
            redis=RedisConfig(**redis),
            rules=[rules.BlackList([tuple(pair) for pair in banned])],
            on_existing=on_existing,
            log_dir=log_dir,
            settings=MessagingConfig(send_timeout_s=5, interceptor_timeout_s=5, strict_senders=False),
        )
        self.groups = {}

    def group(self, name, agents):
        self.groups[name] = self.messaging.create_group(name, agents)

    def send(self, name, from_id, to_id, texts):
        """Send by a group of ours."""
        return self._fates(self.groups[name].send_columns(*_columns(from_id, to_id, texts)))

    def _fates(self, receipts):
        return [receipt.fate for receipt in receipts]

    def send_anew(self, from_id, to_id, texts):
        """Send by a messager that is opened for it."""
        return asyncio.run(self._send_anew(from_id, to_id, texts))

    async def _send_anew(self, from_id, to_id, texts):
        from ray_messaging import Messager

        messaging = self.messaging
        async with Messager(
            messaging.redis, messaging.exp_id, messaging.interceptor, settings=messaging._connection.experiment.settings
        ) as sender:
            return self._fates(await sender.send_columns(*_columns(from_id, to_id, texts)))

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


def _columns(from_id, to_id, texts):
    return [from_id] * len(texts), [to_id] * len(texts), [{"text": text} for text in texts]


def texts_of(log):
    """Return the texts of the messages in an event log."""
    return [json.loads(payload)["text"] for payload in log.query().column("payload").to_pylist()]


def main():
    import ray

    from support.bare_ray import start_ray

    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the output of other code
    start_ray(num_cpus=1, object_store_memory=80 * 2**20)
    driver = Driver()
    print("ready", file=out, flush=True)
    for line in sys.stdin:
        name, args, options = json.loads(line)
        try:
            told = getattr(driver, name)(*args, **options), None
        except Exception as error:  # noqa: BLE001 - raised in the test
            traceback.print_exc()
            told = None, (type(error).__name__, str(error))
        print(json.dumps(told), file=out, flush=True)
    driver.shutdown()
    ray.shutdown()


if __name__ == "__main__":
    main()
