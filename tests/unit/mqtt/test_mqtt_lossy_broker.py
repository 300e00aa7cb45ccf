"""Window and arrivals, joined by a broker that loses, repeats, delays and forgets."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.broker_model import IN_FLIGHT, MOST_HELD, ROWS, Broker, Receiver, Sender

from ray_messaging.mqtt.receiving.arrivals import HELD_BYTES
from ray_messaging.mqtt.wire.messages import decode_data

NAMES = ["a", "b"]
NAME = st.sampled_from(NAMES)
PARTS = ["publish", "answer", "deliver", "commit", "signal", "probe", "come_back"]
TROUBLES = [
    "refuse", "lose", "cut_sender", "reconnect_sender", "abandon", "kill_sender", "next_incarnation", "give_up",
    "reconnect_receiver", "kill_receiver", "restart_broker", "lose_signals",
]  # fmt: skip
WORK, TROUBLE = st.sampled_from(PARTS), st.sampled_from(TROUBLES)
ENOUGH = 10**6


class Reliable(RuleBasedStateMachine):
    """A random sequence of faults.

    Each frame of a live sender is read once and in order; of a dead one only frames that neither broker nor reader
    had are missing, and gaps are counted.
    """

    @initialize(queue_limit=st.sampled_from([2, 5, ENOUGH]), window=st.sampled_from([4, 12]), tight=st.booleans())
    def begin(self, queue_limit, window, tight):
        self.broker = Broker(queue_limit)
        self.tight = tight
        self.receiver = Receiver(self.broker, 2 * (HELD_BYTES + 8) if tight else ENOUGH)
        self.window = window * ROWS
        self.senders = {name: Sender(name, 1, self.window) for name in NAMES}
        self.dead = []
        self.gone = set()  # of what a copy was lost by the broker
        self.excused = set()
        self.newest = dict.fromkeys(NAMES, 0)  # the epoch that has come to the receiver
        for sender in self.senders.values():
            sender.connect()

    @rule(counts=st.tuples(st.integers(0, 6), st.integers(0, 3)))
    def send(self, counts):
        for sender, count in zip(self.senders.values(), counts, strict=True):
            for _ in range(count if sender.alive else 0):
                sender.send()

    @rule(plan=st.lists(st.tuples(WORK, NAME, st.integers(1, 8), st.booleans()), min_size=2, max_size=16))
    def work(self, plan):
        """Let parts of the open work continue; the extent of each delays the others."""
        for part, *arguments in plan:
            getattr(self, part)(*arguments)

    @rule(chance=st.randoms(use_true_random=True), steps=st.integers(20, 150), calm=st.integers(5, 40))
    def storm(self, chance, steps, calm):
        """Run longer sequences than drawn steps do."""
        for _ in range(steps):
            self.send((chance.randint(0, 2), chance.randint(0, 2)))
            part = chance.choice(PARTS if chance.randint(0, calm) else TROUBLES)
            getattr(self, part)(chance.choice(NAMES), chance.randint(1, 4), chance.random() < 0.5)
            self.bounds()

    @rule(part=TROUBLE, name=NAME, count=st.integers(0, 4), flag=st.booleans())
    def trouble(self, part, name, count, flag):
        getattr(self, part)(name, count, flag)

    def publish(self, name, count, old):
        """The broker takes publications, of an old connection, too."""
        pipes = [pipe for sender in self.incarnations(name) for pipe in sender.pipes if pipe.up]
        if pipes:
            pipe = pipes[0 if old else -1]
            for _ in range(min(count, len(pipe.up))):
                self.broker.accept(pipe)
            self.note_lost()

    def answer(self, name, count, _):
        sender = self.senders[name]
        for _ in range(count if sender.pipe is not None else 0):
            if sender.pipe.answers:
                sender.hear_answer()

    def deliver(self, _, count, __):
        for _ in range(count):
            if not self.deliver_one():
                break

    def commit(self, _, count, partly):
        self.tell(self.receiver.commit(count // 2, 1 + count % 2 if partly else 0))

    def signal(self, name, count, _):
        sender = self.senders[name]
        for _ in range(min(count, len(sender.signals))):
            sender.hear_signal()

    def probe(self, name, _, __):
        self.senders[name].publish(self.senders[name].window.probe())

    def come_back(self, name, _, next_one):
        sender = self.senders[name]
        if sender.alive and sender.pipe is None:
            sender.connect()
        elif not sender.alive and next_one:
            self.next_incarnation(name, 0, False)

    # -- what goes wrong ------------------------------------------------------------------------------------------

    def refuse(self, name, count, _):
        """Refuse a publication of which the broker never got a copy."""
        sender = self.senders[name]
        if sender.pipe is not None and sender.pipe.up:
            data = decode_data(sender.pipe.up[0])
            if data.frame and sender.published[data.seq] == 1:
                self.broker.accept(sender.pipe, refuse=True)
                self.publish(name, count, False)

    def lose(self, name, count, _):
        pipe = self.senders[name].pipe
        for _ in range(0 if pipe is None else min(1 + count, len(pipe.up))):
            self.broker.accept(pipe, lose=True)
        self.note_lost()

    def cut_sender(self, name, _, linger):
        self.senders[name].disconnect(linger=linger)

    def reconnect_sender(self, name, _, linger):
        if self.senders[name].alive:
            self.senders[name].disconnect(linger=linger)
            self.senders[name].connect()

    def abandon(self, name, _, reconnect):
        if self.senders[name].alive:
            self.senders[name].abandon()
            if reconnect:
                self.reconnect_sender(name, 0, True)

    def kill_sender(self, name, _, linger):
        self.senders[name].disconnect(linger=linger)
        self.senders[name].alive = False

    def next_incarnation(self, name, _, linger):
        old = self.senders[name]
        if old.alive:
            self.kill_sender(name, 0, linger)
        self.dead.append(old)
        self.senders[name] = Sender(name, old.epoch + 1, self.window)
        self.senders[name].connect()

    def reconnect_receiver(self, _, __, ___):
        self.receiver.reconnect()

    def kill_receiver(self, _, count, partly):
        """The reader dies just after its cursor was written; another one comes."""
        self.receiver.commit(count, 1 if partly else 0, dies=True)
        self.broker.requeue()
        forgotten = self.in_memory() - self.at_the_broker()
        self.excused |= forgotten & (self.receiver.early | self.gone)
        self.receiver.begin()
        for sender in self.living():
            sender.resend(sender.window.base)

    def restart_broker(self, _, count, empty):
        for sender in self.senders.values():
            sender.disconnect(linger=count % 2 and not empty)
        if empty:
            for sender in self.all_senders():
                for pipe in sender.pipes:
                    pipe.up.clear()
            self.broker.forget()
        self.receiver.reconnect()
        self.note_lost()

    def lose_signals(self, name, _, __):
        self.senders[name].signals.clear()

    def give_up(self, *_):
        for resend in self.receiver.arrivals.gaps():
            of_it = [sender for sender in self.incarnations(resend.sender) if sender.epoch == resend.epoch]
            if not of_it[0].alive and not any(pipe.up for pipe in of_it[0].pipes) and not self.queued(resend):
                self.receiver.put(self.receiver.arrivals.give_up(resend))

    @invariant()
    def bounds(self):
        receiver = getattr(self, "receiver", None)
        if receiver is not None:
            assert len(self.broker.in_flight) <= len(receiver.buffer) + MOST_HELD, "a token was forgotten"
            assert receiver.arrivals.held_bytes <= receiver.hold_bytes
            kept = self.at_the_broker() | self.gone | receiver.early
            assert {frame[:3] for frame in receiver.buffer} <= kept, "a reader after this one would not get it"

    def teardown(self):
        if not hasattr(self, "receiver"):
            return
        self.settle()
        for sender in self.all_senders():
            rows = [row for row in self.receiver.log if row[:2] == (sender.name, sender.epoch)]
            assert rows == sorted(set(rows)), "read twice, or out of order"
            read = {seq for _, _, seq, _ in rows}
            whole = {seq for seq in read if len([row for row in rows if row[2] == seq]) == ROWS}
            promised = set(range(1, sender.window.last + 1)) - sender.withdrawn - sender.abandoned
            if sender.alive:
                assert not read & sender.withdrawn, "what was refused was read"
                assert promised <= whole, f"lost: {promised - whole}"
                assert len(sender.window) == 0
                assert sender.window.messages == sender.window.nbytes == 0
            elif not self.tight:
                missing = {seq for seq in sender.told - whole if (sender.name, sender.epoch, seq) not in self.excused}
                assert not missing, f"lost though somebody had it: {missing}"
        for name in NAMES:
            keys = [row[1:] for row in self.receiver.log if row[0] == name]
            assert keys == sorted(keys)
        assert self.between() <= self.receiver.lost + self.receiver.arrivals.lost

    def between(self):
        """Count the frames of dead senders that are missing between two that were read."""
        count = 0
        for sender in self.all_senders():
            read = {row[2] for row in self.receiver.log if row[:2] == (sender.name, sender.epoch)}
            count += len([seq for seq in sender.told - read if read and seq < max(read)])
        return count

    def all_senders(self):
        return [*self.dead, *self.senders.values()]

    def incarnations(self, name):
        return [sender for sender in self.all_senders() if sender.name == name]

    def living(self):
        return [sender for sender in self.senders.values() if sender.alive]

    def queued(self, resend):
        return any(decode_data(payload)[:2] == resend[:2] for payload in self.broker.queue)

    def in_memory(self):
        return {frame[:3] for frame in self.receiver.buffer} | self.receiver.early

    def at_the_broker(self):
        payloads = [*self.broker.queue, *(token.payload for token in self.broker.in_flight)]
        return {data[:3] for data in map(decode_data, payloads) if data.frame}

    def note_lost(self):
        lost = {decode_data(payload)[:3] for payload in self.broker.dropped}
        self.broker.dropped.clear()
        self.gone |= lost
        self.excused |= lost - self.at_the_broker() - self.in_memory()

    def deliver_one(self):
        if not self.broker.queue or len(self.broker.in_flight) >= IN_FLIGHT:
            return False
        data, signals = self.receiver.take()
        if data.epoch < self.newest[data.sender]:
            self.excused |= {data[:3]} - self.at_the_broker()  # its successor was there first
        self.newest[data.sender] = max(self.newest[data.sender], data.epoch)
        self.tell(signals)
        return True

    def tell(self, signals):
        for name, signal in signals:
            if self.senders[name].pipe is not None:
                self.senders[name].signals.append(signal)

    def settle(self):
        """Let everything succeed for long enough."""
        self.receiver.reconnect()
        for sender in self.living():
            sender.disconnect(linger=True)
            sender.connect()
        for _ in range(80):
            self.flow()
            if not any(len(sender.window) for sender in self.living()) and not self.receiver.arrivals.gaps():
                break
            for sender in self.living():
                sender.publish(sender.window.probe())
        assert not self.receiver.arrivals.gaps()
        assert self.receiver.arrivals.held_bytes == 0
        assert not self.broker.in_flight

    def flow(self):
        moved = True
        while moved:
            moved = False
            for sender in self.all_senders():
                for pipe in sender.pipes:
                    if pipe.up:
                        self.broker.accept(pipe)
                        moved = True
                while sender.pipe is not None and sender.pipe.answers:
                    sender.hear_answer()
                while sender.signals:
                    sender.hear_signal()
            self.note_lost()
            while self.deliver_one() or self.receiver.buffer:
                self.tell(self.receiver.commit(1, 0))
                moved = True
            self.give_up()


TestReliable = Reliable.TestCase
TestReliable.settings = settings(max_examples=80, stateful_step_count=8)
