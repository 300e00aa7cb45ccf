"""A model of a broker that loses, repeats and delays, and of the two messagers at its ends."""

from collections import Counter, deque

from ray_messaging.mqtt.receiving.arrivals import Arrivals
from ray_messaging.mqtt.sending.window import Window
from ray_messaging.mqtt.wire.messages import decode_data, decode_positions, encode_data, encode_positions

ROWS = 3  # of each frame
MOST_HELD = 2
IN_FLIGHT = 4  # the most that the broker sends without an acknowledgement


class Token:
    """One arrival under one connection of the receiver's."""

    def __init__(self, connection, payload):
        self.connection = connection
        self.payload = payload


class Pipe:
    """One connection of a sender's: publications to the broker in order, answers back in order."""

    def __init__(self):
        self.up = deque()
        self.answers = deque()


class Broker:
    """A broker with one persistent session; publications above `queue_limit` are dropped silently, as by Mosquitto."""

    def __init__(self, queue_limit):
        self.queue_limit = queue_limit
        self.queue = deque()
        self.in_flight = []
        self.cursor = encode_positions({})
        self.dropped = []  # payloads of which a copy is gone

    def accept(self, pipe, *, refuse=False, lose=False):
        """Take one publication; answer it."""
        payload = pipe.up.popleft()
        data = decode_data(payload)
        if refuse:
            pipe.answers.append((data.seq, False))
            return
        if len(self.queue) < self.queue_limit and not lose:
            self.queue.append(payload)
        else:
            self.dropped.append(payload)
        if data.frame:
            pipe.answers.append((data.seq, True))

    def requeue(self):
        """Note the end of the receiver's connection: unacknowledged publications come again, first."""
        self.queue.extendleft(token.payload for token in reversed(self.in_flight))
        self.in_flight = []

    def forget(self):
        """Start again with nothing."""
        self.dropped += [token.payload for token in self.in_flight] + list(self.queue)
        self.queue.clear()
        self.in_flight = []


class Sender:
    """One incarnation of a sender, with its window."""

    def __init__(self, name, epoch, limit):
        self.name = name
        self.epoch = epoch
        self.window = Window(name, epoch, limit, 10**9)
        self.pipe = None
        self.pipes = []  # the old ones, too: their contents may still arrive
        self.signals = deque()
        self.alive = True
        self.published = Counter()  # how often, by seq
        self.withdrawn = set()
        self.abandoned = set()
        self.told = set()  # seqs of which the user was told that they are delivered

    def connect(self):
        self.pipe = Pipe()
        self.pipes.append(self.pipe)
        self.republish()

    def disconnect(self, *, linger):
        if not linger and self.pipe is not None:
            self.pipe.up.clear()
        if self.pipe is not None:
            self.pipe.answers.clear()
        self.pipe = None
        self.signals.clear()  # its session ends with the connection

    def publish(self, data):
        if self.pipe is not None:
            self.published[data.seq] += 1
            self.pipe.up.append(encode_data(data))

    def republish(self):
        for data in self.window.pending():
            self.publish(data)

    def resend(self, seq):
        """Publish earlier publications again, on the same connection, up to the first that is unanswered; or probe."""
        if self.window.next(seq) is None:
            self.publish(self.window.probe())
        for data in self.window.pending():
            if data.seq >= seq and not self.window.is_arrived(data.seq):
                return
            if data.seq >= seq:
                self.publish(data)

    def send(self):
        seq = self.window.last + 1
        frame = f"{self.name} {self.epoch} {seq}".encode()
        if self.window.fits(ROWS, len(frame)):
            data = self.window.put(frame, ROWS)
            assert data.seq == seq
            self.publish(data)

    def hear_answer(self):
        seq, taken = self.pipe.answers.popleft()
        if taken:
            self.window.arrived(seq)
            if seq not in self.withdrawn | self.abandoned:
                assert self.window.is_arrived(seq)
                self.told.add(seq)
            return
        before = {data.seq for data in self.window.pending()}
        count = self.window.withdraw(seq)
        gone = before - {data.seq for data in self.window.pending()}
        assert len(gone) == count
        self.withdrawn |= gone
        self.told -= gone
        if count > 1:
            self.publish(self.window.probe())

    def abandon(self):
        before = {data.seq for data in self.window.pending()}
        count = self.window.abandon_unarrived()
        gone = before - {data.seq for data in self.window.pending()}
        assert len(gone) == count
        assert not gone & self.told
        self.abandoned |= gone

    def hear_signal(self):
        kind, epoch, seq = self.signals.popleft()
        if epoch != self.epoch:
            return
        if kind == "confirm":
            self.window.confirm(seq)
        else:
            self.resend(seq)


class Receiver:
    """Successive readers of a mailbox; `log` has the committed rows: (sender, epoch, seq, row)."""

    def __init__(self, broker, hold_bytes):
        self.broker = broker
        self.hold_bytes = hold_bytes
        self.connected = True
        self.log = []
        self.handed = {}  # sender -> the last (epoch, seq) that this reader handed on
        self.lost = 0
        self.arrivals = None
        self.begin()

    def begin(self):
        """Start as the mailbox's next reader."""
        if self.arrivals is not None:
            self.lost += self.arrivals.lost
        self.connection = object()
        self.arrivals = Arrivals(decode_positions(self.broker.cursor), self.hold_bytes, most_held=MOST_HELD)
        self.buffer = deque()
        self.handed = {}
        self.early = set()  # out-of-order arrivals of this reader
        self.connected = True

    def reconnect(self):
        self.broker.requeue()
        self.connection = object()
        self.connected = True

    def acknowledge(self, tokens):
        """Acknowledge to the broker; under a connection that has ended, that does nothing."""
        for token in tokens:
            if token in self.broker.in_flight and token.connection is self.connection and self.connected:
                self.broker.in_flight.remove(token)

    def take(self):
        """Take the broker's next publication; return it, and the signals for its sender."""
        token = Token(self.connection, self.broker.queue.popleft())
        self.broker.in_flight.append(token)
        data = decode_data(token.payload)
        taken = self.arrivals.take(data, token)
        if data.frame and data[1:3] > max(
            [self.handed.get(data.sender, (0, 0)), *(frame[1:3] for frame in taken.frames)]
        ):
            self.early.add(data[:3])
        self.put(taken)
        signals = []
        if taken.resend is not None:
            assert taken.resend.sender == data.sender
            signals.append((taken.resend.sender, ("resend", *taken.resend[1:])))
        if taken.confirm:
            signals.append(self.confirmation(data.sender))
        return data, signals

    def put(self, taken):
        for frame in taken.frames:
            assert frame.frame == f"{frame.sender} {frame.epoch} {frame.seq}".encode()
            assert frame[1:3] > self.handed.get(frame.sender, (0, 0)), "handed on twice, or out of order"
            self.handed[frame.sender] = frame[1:3]
            self.buffer.append(frame)
        self.acknowledge(taken.acknowledge)

    def confirmation(self, name):
        place = self.arrivals.confirmed(name)
        return name, ("confirm", place.epoch, place.seq)

    def commit(self, count, row, *, dies=False):
        """Commit frames from the front, then `row` rows of the next; dies: before the broker hears of more."""
        signals = {}
        tokens = []
        for number in range(min(count, len(self.buffer)) + 1):
            whole = number < count
            if not self.buffer or (not whole and not row):
                break
            frame = self.buffer[0]
            end = ROWS if whole else row
            if not whole and end <= frame.row:
                break
            self.log += [(*frame[:3], at) for at in range(frame.row, end)]
            tokens += self.arrivals.committed(*frame[:3], 0 if whole else row)
            signals[frame.sender] = self.confirmation(frame.sender)
            if whole:
                self.buffer.popleft()
            else:
                self.buffer[0] = frame._replace(row=row)
        self.broker.cursor = encode_positions(self.arrivals.positions())
        if dies:
            return []
        self.acknowledge(tokens)
        return list(signals.values())
