"""A stage for a fault: a server, processes that send and receive, and the end at which all of it is counted."""

import asyncio
import queue
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

from support.replicated import ReplicatedService
from support.servers import RedisProcess
from support.slots import ClusterService

from faults import injector, workload
from faults.bank import forks
from faults.case import failing_over
from faults.checker import check
from faults.ledger import Growing
from ray_messaging import Messager
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import TransitError

WAIT_S = 60.0
_ADDRESS = ("server", "port", "password", "timeout", "sentinels", "service", "sentinel_password", "cluster")


def told(config):
    """Return a config as a worker reads it."""
    return {name: getattr(config, name) for name in _ADDRESS}


def until(condition, what, wait_s=WAIT_S):
    """Wait until a condition holds that has no event."""
    end = time.monotonic() + wait_s
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {wait_s:g} s")
        time.sleep(0.02)
    return found


class Worker:
    """A process of `faults.workload`, with its events and its log."""

    def __init__(self, folder, options):
        self.options = options
        self.heard = queue.Queue()
        self.log = folder / f"{options['label']}.log"
        self._done = None
        self.killed = False
        self._pipe, theirs = forks.Pipe()
        self.process = forks.Process(target=workload.run, args=(options, theirs, self.log), daemon=True)
        self.process.start()
        theirs.close()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self):
        with suppress(EOFError, OSError):
            while True:
                self.heard.put(self._pipe.recv())
        self.heard.put({"event": "gone"})

    @property
    def pid(self):
        return self.process.pid

    def tell(self, order):
        self._pipe.send(order)

    def hear(self, event, wait_s=WAIT_S):
        """Wait for an event; raise AssertionError where another end comes before it."""
        try:
            while (heard := self.heard.get(timeout=wait_s))["event"] != event:
                if heard["event"] in {"gone", "failed"}:
                    raise AssertionError(f"{self.options['label']}: {heard}\n{self._said()}")
        except queue.Empty:
            raise AssertionError(f"{self.options['label']} did not say {event!r}\n{self._said()}") from None
        return heard

    def _said(self):
        return self.log.read_text() if self.log.exists() else ""

    def end(self, *, stop=True):
        """Stop the process (or wait for its end), and return its last event."""
        if self._done is None:
            if stop:
                with suppress(ConnectionError):
                    self.tell("stop")
            self._done = self.hear("done")
        return self._done

    def logged(self, text):
        """Count the lines of its log that hold a text."""
        return sum(text in line for line in self._said().splitlines())

    def kill(self):
        """End it, if it has not ended; twice does no harm."""
        self.killed = True
        self.process.kill()
        self.process.join()
        self._thread.join()
        self._pipe.close()


class FailingOver:
    """A cluster, or a primary with a replica and Sentinels, in place of a server: killed, it fails over."""

    def __init__(self, kind, folder, exp_id, **options):
        if kind == "cluster":
            self.service = ClusterService(folder, exp_id=exp_id, **options)
        else:
            self.service = ReplicatedService(folder, binary="valkey", **options)
        self.ended = None  # the primary that was killed

    @property
    def config(self):
        return self.service.config

    @property
    def process(self):
        return self.service.process

    @property
    def pid(self):
        return self.service.primary.pid

    def client(self):
        return self.service.primary.client()

    def start(self):
        """Start all, or let the one that was killed come back as a replica."""
        if self.ended is None:
            self.service.start()
        else:
            self.service.join(self.ended)
            self.service.settle()

    def kill(self):
        """Kill the primary; return when another server has taken its place."""
        self.ended = self.service.primary
        self.ended.kill()
        self.service.failed_over()

    def end(self):
        self.service.kill()


class Stage:
    """Set a stage in a folder; as a context manager it leaves no process behind.

    `server` may be a RedisProcess that was started already. `settings` are those of all messagers, beside their own.
    In a case on a cluster or Sentinels `server` is all of them.
    """

    def __init__(self, folder, *, server=None, settings=None, **options):
        self.folder = Path(folder)
        (self.folder / "server").mkdir(parents=True, exist_ok=True)
        self.settings, self.exp_id = settings or {}, f"fault-{secrets.token_hex(4)}"
        if (kind := failing_over.get()) is not None:
            server = FailingOver(kind, self.folder / "service", self.exp_id, **options)
            self.settings = {"wait_replicas": 1, "send_timeout_s": WAIT_S} | self.settings
        self.server = server or RedisProcess(self.folder / "server", **{"binary": "valkey"} | options)
        self.senders, self.receivers, self.loggers = [], [], []
        self.ledgers, self.inboxes = [], []
        self._files = {}
        self.healed_at = None
        self.facts = {}

    def __enter__(self):
        if self.server.process is None:
            self.server.start()
        return self

    def __exit__(self, *_):
        for worker in (*self.senders, *self.receivers, *self.loggers):
            worker.kill()
        self.server.end() if isinstance(self.server, FailingOver) else self.server.kill()

    # -- who is on it -------------------------------------------------------------------------------------------------

    def _start(self, role, config, options):
        server = told(config or self.server.config)
        label = options.setdefault("label", f"{role}-{len(self.senders) + len(self.receivers) + len(self.loggers)}")
        common = {"role": role, "server": server, "exp_id": self.exp_id, "label": label}
        settings = self.settings | options.get("settings", {})
        return Worker(self.folder, common | options | {"settings": settings})

    def receiver(self, agents, *, config=None, go=True, **options):
        """Start a receiver that hosts agents, by way of `config` (none: straight); it fetches when told to go."""
        path = self.folder / f"inbox-{len(self.inboxes)}.jsonl"
        options = {"agents": list(agents), "inbox": str(path), "name": f"group-{len(self.receivers)}"} | options
        return self._enter(self._start("receiver", config, options), self.receivers, self.inboxes, "inbox", go)

    def sender(self, from_ids, to_ids, *, config=None, go=True, **options):
        """Start a sender of messages between all pairs; it sends when told to go."""
        path = self.folder / f"ledger-{len(self.ledgers)}.jsonl"
        options = {"from_ids": list(from_ids), "to_ids": list(to_ids), "ledger": str(path)} | options
        return self._enter(self._start("sender", config, options), self.senders, self.ledgers, "ledger", go)

    def logger(self, log_dir):
        """Start a writer of the event log."""
        self.loggers.append(self._start("logger", None, {"log_dir": str(log_dir)}))
        self.loggers[-1].hear("ready")
        return self.loggers[-1]

    def _enter(self, worker, workers, paths, kind, go):
        workers.append(worker)
        path = Path(worker.options[kind])
        if path not in paths:
            paths.append(path)
        if go is not None:
            worker.hear("ready")
        if go:
            worker.tell("go")
        return worker

    def talk(self, receivers=1, *, config=None, fetching=True, **sender):
        """Let a sender and receivers of an agent or two each talk; return when they are at it: sender, receivers."""
        groups = [[10 * at, 10 * at + 1] for at in range(receivers)]
        agents = [agent for group in groups for agent in group]
        listening = [self.receiver(group, config=config, go=None) for group in groups]
        options = {"rate": 100, "per_call": 12} | sender
        talking = self.sender([1001, 1002, 1003], agents, config=config, go=None, **options)
        for worker in (*listening, talking):
            worker.hear("ready")  # they start side by side
        for worker in (*(listening if fetching else []), talking):
            worker.tell("go")
        if fetching:
            self.more_received(300)
        return talking, listening

    # -- what is seen of it -------------------------------------------------------------------------------------------

    def sent(self):
        """Count the delivered messages."""
        return sum(self._growing(path).delivered for path in self.ledgers)

    def received(self):
        """Count the fetched messages."""
        return sum(self._growing(path).fetched for path in self.inboxes)

    def errors(self, kind=""):
        """Count the calls that ended with an error of a kind (none: of any)."""
        return sum(why.startswith(kind) for path in self.ledgers for why in self._growing(path).errors)

    def _growing(self, path):
        return self._files.setdefault(path, Growing(path)).read()

    def more_received(self, count, wait_s=WAIT_S):
        """Wait until so many more messages were fetched."""
        goal = self.received() + count
        until(lambda: self.received() >= goal, f"{count} more messages", wait_s)

    def more_sent(self, count, wait_s=WAIT_S):
        """Wait until so many more messages were acknowledged."""
        goal = self.sent() + count
        until(lambda: self.sent() >= goal, f"{count} more receipts", wait_s)

    def healed(self):
        """Note that the fault is over."""
        self.healed_at = time.time()

    def memory(self, **pids):
        """Note the memory of processes among the facts: the most that each has had, in MiB."""
        for name, pid in pids.items():
            self.facts[f"{name}_mib"] = round(max(self.facts.get(f"{name}_mib", 0), injector.memory_of(pid)[1]))

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, log=None):
        """Stop the senders, wait until the receivers have all, and compare; `log` gives the rows of an event log."""
        for worker in self.senders:
            if not worker.killed:
                self._add(worker.end()["errors"])
        alive = [worker for worker in self.receivers if not worker.killed]
        token = secrets.token_hex(4)
        asyncio.run(self._mark_end([worker.options["agents"][0] for worker in alive], token))
        for worker in alive:
            while worker.hear("end")["token"] != token:
                pass
            self._add(worker.end()["stats"])
        return self.count(None if log is None else log())

    def count(self, log=None):
        """Compare the ledgers and records so far."""
        account = check(self.ledgers, self.inboxes, log, healed_at=self.healed_at)
        account.facts |= self.facts
        return account

    def _add(self, counts):
        """Add the counts of a process to the facts."""
        for name, count in counts.items():
            if count:
                self.facts[name] = self.facts.get(name, 0) + count

    async def _mark_end(self, agents, token):
        """Send a last message to each receiver: mailboxes keep order, so all earlier ones have come before it."""
        async with Messager(
            self.server.config, self.exp_id, settings=MessagingConfig(**self.settings | {"send_timeout_s": WAIT_S})
        ) as messager:
            for agent in agents:
                try:
                    receipt = await messager.send_message(messager.get_user_chat_channel(agent), {"end": token})
                except TransitError as error:
                    raise AssertionError(f"the end could not be marked: {error}") from error
                assert receipt.fate == "delivered", receipt
