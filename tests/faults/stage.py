"""A stage for a fault: a server, processes that send and receive, and the end at which all of it is counted."""

import asyncio
import queue
import secrets
import threading
import time
from contextlib import suppress
from pathlib import Path

from support.patience import WAIT_S
from support.replicated import ReplicatedService, until
from support.servers import RedisProcess
from support.slots import ClusterService

from faults import injector, workload
from faults.bank import forks
from faults.checker import check
from faults.ledger import Growing
from ray_messaging import Messager
from ray_messaging.config import MessagingConfig
from ray_messaging.errors import TransitError


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

    def hear(self, event):
        """Wait for an event; raise AssertionError where another end comes before it."""
        try:
            while (heard := self.heard.get(timeout=WAIT_S))["event"] != event:
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
        options = {"binary": "valkey"} | options
        if kind == "cluster":
            self.service = ClusterService(folder, exp_id=exp_id, **options)
        else:
            self.service = ReplicatedService(folder, **options)
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

    def kill(self):
        """Kill the primary; return when another server has taken its place."""
        self.ended = self.service.primary
        self.ended.kill()
        self.service.failed_over()

    def cut_off_and_kill(self, after_s):
        """Cut the primary off from all but its clients; kill it so long after another server has taken its place."""
        self.ended = self.service.primary
        self.service.cut_off(self.ended)
        self.service.failed_over()
        time.sleep(after_s)
        self.ended.kill()

    def end(self):
        self.service.kill()


class Stage:
    """Set a stage in a folder; as a context manager it leaves no process behind.

    `server` may be a RedisProcess that was started already. `settings` are those of all messagers, beside their own.
    `on` a cluster or a Sentinel `server` is all of them.
    """

    def __init__(self, folder, *, server=None, on=None, settings=None, **options):
        self.folder = Path(folder)
        (self.folder / "server").mkdir(parents=True, exist_ok=True)
        self.settings, self.exp_id = settings or {}, f"fault-{secrets.token_hex(4)}"
        if on is not None:
            server = FailingOver(on, self.folder / "service", self.exp_id, **options)
            self.settings = {"wait_replicas": 1, "send_timeout_s": WAIT_S} | self.settings
        self.server = server or RedisProcess(self.folder / "server", **{"binary": "valkey"} | options)
        self.workers = []
        self.ledgers, self.inboxes = [], []
        self._files = {}
        self.healed_at = None
        self.facts = {}

    def __enter__(self):
        if self.server.process is None:
            self.server.start()
        return self

    def __exit__(self, *_):
        for worker in self.workers:
            worker.kill()
        self.server.end() if isinstance(self.server, FailingOver) else self.server.kill()

    # -- who is on it -------------------------------------------------------------------------------------------------

    def _enter(self, role, *, config=None, go=True, **options):
        """Start a worker that gets to the server by way of `config`; it begins when told to go (None: do not wait)."""
        common = {"role": role, "server": config or self.server.config, "exp_id": self.exp_id}
        own = {"label": f"{role}-{len(self.workers)}", "settings": self.settings | options.pop("settings", {})}
        worker = Worker(self.folder, common | options | own)
        self.workers.append(worker)
        if go is not None:
            worker.hear("ready")
        if go:
            worker.tell("go")
        return worker

    def receiver(self, agents, **options):
        """Start a receiver that hosts agents."""
        self.inboxes.append(self.folder / f"inbox-{len(self.inboxes)}.jsonl")
        given = {"agents": list(agents), "inbox": str(self.inboxes[-1]), "name": f"group-{len(self.inboxes) - 1}"}
        return self._enter("receiver", **given | options)

    def sender(self, from_ids, to_ids, **options):
        """Start a sender of messages between all pairs."""
        self.ledgers.append(self.folder / f"ledger-{len(self.workers)}.jsonl")
        return self._enter(
            "sender", from_ids=list(from_ids), to_ids=list(to_ids), ledger=str(self.ledgers[-1]), **options
        )

    def logger(self, log_dir):
        """Start a writer of the event log."""
        return self._enter("logger", log_dir=str(log_dir))

    def successor(self, worker, **options):
        """Start a worker with the same name, which appends to the same file."""
        return self._enter(**worker.options | options)

    def replace(self, worker, **options):
        """Kill a worker; return its successor."""
        worker.kill()
        return self.successor(worker, **options)

    def alive(self, role):
        """Return the workers in a role that were not killed."""
        return [worker for worker in self.workers if worker.options["role"] == role and not worker.killed]

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

    def more_received(self, count):
        """Wait until so many more messages were fetched."""
        goal = self.received() + count
        until(lambda: self.received() >= goal, f"{count} more messages")

    def more_sent(self, count):
        """Wait until so many more messages were acknowledged."""
        goal = self.sent() + count
        until(lambda: self.sent() >= goal, f"{count} more receipts")

    def healed(self):
        """Note that the fault is over."""
        self.healed_at = time.time()

    def memory(self, **pids):
        """Note the memory of processes among the facts: the most that each has had, in MiB."""
        for name, pid in pids.items():
            self.facts[f"{name}_mib"] = round(max(self.facts.get(f"{name}_mib", 0), injector.memory_of(pid)))

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, log=None):
        """Stop the senders, wait until the receivers have all, and compare; `log` gives the rows of an event log."""
        for worker in self.alive("sender"):
            self._add(worker.end()["errors"])
        alive = self.alive("receiver")
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
