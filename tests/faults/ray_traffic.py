"""Traffic between two groups over Ray: senders and receivers that survive any fault, and the account."""

import json
import threading
import time
from collections import Counter, defaultdict
from contextlib import contextmanager

from support.cluster import PATIENCE_S, new_handle, wait_for
from support.patience import Busy

from faults.checker import check
from faults.ledger import Inbox, Ledger, fates_after, key_of, read_ledger, read_lines
from faults.ray_support import GROUPS
from ray_messaging.cluster.handles.group.group_lane import LaneReply
from ray_messaging.errors import Closed, Fenced, MessagingError, NotListening

PAIRS = ((1, 11), (2, 12), (13, 3))
ROWS = 20
PAUSE_S = 0.02  # between batches of one sender: two cores must do for all
REFUSALS = (Fenced, Closed, NotListening)


class Unheard:
    """A handle's lane that loses each answer, so that the call comes again, by Ray."""

    def __init__(self, lane):
        self.lane, self.release = lane, lane.release
        self.deaf = set()

    async def connection(self):
        found = await self.lane.connection()
        assert found is not None
        if found not in self.deaf:
            self.deaf.add(found)
            ask = found.ask

            async def unheard(*call):
                await ask(*call)
                return LaneReply(begun=True, answer=None)

            found.ask = unheard
        return found


class Sender(Busy):
    """Send small batches of one pair in order; write the fate of each message."""

    def __init__(self, folder, group, pair):
        super().__init__()
        self.group, self.pair = group, pair
        self.ledger = Ledger(folder / f"ledger-{pair[0]}-{pair[1]}")
        self.delivered = self.answered = 0
        self.met, self.repeated = [], False

    def work(self):
        handle = new_handle(self.group)
        if self.repeated:
            unheard = Unheard(handle._calls._lane())
            handle._calls._lane = lambda: unheard
        while not self.enough.wait(PAUSE_S):
            self.send(handle, ROWS)

    def send(self, handle, rows):
        """Send a batch by a handle of the group."""
        keys = [self.ledger.number(*self.pair) for _ in range(rows)]
        call = self.ledger.begin(keys)
        from_id, to_id = self.pair
        why = ""
        try:
            fates = handle.send_columns([from_id] * rows, [to_id] * rows, [{"n": key[2]} for key in keys]).fates
        except MessagingError as error:
            self.met.append(error)
            fates, why = fates_after(error, rows), repr(error)
        fates = list(map(str, fates))
        self.ledger.settle(call, fates, why)
        self.delivered += fates.count("delivered")
        self.answered += fates.count("delivered") + fates.count("blocked")


class Receiver(Busy):
    """Fetch a group's messages; each process of the group that refuses us ends an incarnation."""

    def __init__(self, folder, group, name):
        super().__init__()
        self.path, self.group = folder / f"inbox-{name}", group
        self.handle, self.inbox = new_handle(group), Inbox(self.path)
        self.count, self.met = 0, []
        # Whoever fetched before, in a process that was killed, has written down what it got.
        self.seen = {tuple(key) for line in read_lines(self.path) if line[0] == "fetched" for key in line[3]}

    def work(self):
        while not self.enough.is_set():
            try:
                messages = self.handle.fetch_messages(timeout=0.5)
            except REFUSALS as error:
                self.met.append(error)
                self.inbox.note(repr(error))
                # What it held belongs to a successor now.
                self.handle, self.inbox = new_handle(self.group), Inbox(self.path)
                self.enough.wait(0.1)
                continue
            self.inbox.take(messages)
            self.seen.update(map(key_of, messages))
            self.count += len(messages)
        self.finish()

    def finish(self):
        """Commit the held messages."""
        try:
            self.handle.ack()
        except REFUSALS as error:
            self.met.append(error)
        else:
            self.inbox.committed()


class Traffic:
    """Have pairs of agents write to each other while the groups fetch; folder keeps the ledgers and the inboxes."""

    def __init__(self, town, folder, pairs=PAIRS):
        self.town, self.folder = town, folder
        self.senders = [Sender(folder, town.group_of(pair[0]), pair) for pair in pairs]
        self.receivers = {name: Receiver(folder, group, name) for name, group in town.groups.items()}
        self.healed_at = None
        self.twins, self.senders_on_twins = 0, []

    def goes_on(self, rows=100):
        """Wait until every sender has `rows` more receipts, and the receivers have the acknowledged messages."""
        sent = [sender.answered for sender in self.senders]
        wait_for(
            lambda: all(s.answered >= n + rows for s, n in zip(self.senders, sent, strict=True)), "further receipts"
        )
        came = {name: receiver.count for name, receiver in self.receivers.items()}
        busy = {self.town.group_of(sender.pair[1]).name for sender in self.senders}
        wait_for(lambda: all(self.receivers[name].count > came[name] for name in busy), "further messages")
        self.healed_at = time.time()

    def on_twin(self, handle):
        """Send and fetch by a handle of a twin, for agents of its own; both must be stopped before the twin ends."""
        self.twins += 1
        to_id = 3 if handle.name == "east" else 13
        sender = Sender(self.folder, handle, (GROUPS[handle.name][-self.twins], to_id))
        receiver = self.receivers[f"twin-{self.twins}"] = Receiver(self.folder, handle, f"twin-{self.twins}")
        self.senders_on_twins.append(sender)
        for thread in (sender, receiver):
            thread.start()
        return sender, receiver

    @property
    def refusals(self):
        """Return the number of refusals by processes with a successor."""
        threads = [*self.all_senders, *self.receivers.values()]
        return sum(isinstance(error, Fenced) for thread in threads for error in thread.met)

    @property
    def all_senders(self):
        return [*self.senders, *self.senders_on_twins]

    def acknowledged(self):
        """Return the keys of the acknowledged messages."""
        sends = [send for sender in self.all_senders for send in read_ledger(sender.ledger.path)]
        return {send.key for send in sends if send.fate == "delivered"}

    def finish(self):
        """Stop sending, and receive all that was acknowledged, or wait in vain for it."""
        for sender in self.senders:
            sender.stop()
        wanted, patience, end = self.acknowledged(), threading.Event(), time.monotonic() + PATIENCE_S
        while time.monotonic() < end and not wanted <= set().union(*(r.seen for r in self.receivers.values())):
            patience.wait(0.05)
        for receiver in self.receivers.values():
            receiver.stop()

    @property
    def files(self):
        """Return the ledgers and the inboxes."""
        return [s.ledger.path for s in self.all_senders], [r.path for r in self.receivers.values()]

    def account(self, **facts):
        """Compare the sent, received and, with a log, the logged messages."""
        log = self.town.messaging.log if self.town.messaging._connection.experiment.log_dir is not None else None
        ledgers, inboxes = self.files
        account = check(ledgers, inboxes, None if log is None else rows_of(log), healed_at=self.healed_at)
        # One group's arrivals must not hide another one's silence.
        account.longest_gap_s = max(check([], [path]).longest_gap_s for path in inboxes)
        account.facts |= facts | {"committed_twice": committed_twice(inboxes)}
        return account


def committed_twice(inboxes):
    """Return how many messages two fetches have committed."""
    committed, held = Counter(), defaultdict(list)
    for line in (line for path in inboxes for line in read_lines(path)):
        if line[0] == "fetched":
            held[line[1]] += map(tuple, line[3])
        elif line[0] == "committed":
            committed.update(held.pop(line[1], ()))
    return len(committed) - sum(count == 1 for count in committed.values())


def rows_of(log):
    """Return an event log's rows as the checker reads them."""
    columns = ("from_id", "to_id", "payload", "fate", "rule", "reason")
    return [row | {"n": json.loads(row["payload"])["n"]} for row in log.query().select(columns).to_pylist()]


@contextmanager
def traffic_in(town, folder, pairs=PAIRS, *, repeated=False):
    """Have traffic flow; at the end all fall silent. `repeated`: each send's call is made twice."""
    traffic = Traffic(town, folder, pairs)
    for sender in traffic.senders:
        sender.repeated = repeated
    for thread in [*traffic.senders, *traffic.receivers.values()]:
        thread.start()
    try:
        traffic.goes_on()
        yield traffic
        traffic.finish()
    finally:
        threads = [*traffic.all_senders, *traffic.receivers.values()]
        for thread in threads:
            thread.enough.set()
        for thread in threads:
            thread.join(PATIENCE_S)
