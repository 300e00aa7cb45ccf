"""The keys of an experiment on the server: their names are built here only, and say which keys a checkpoint has."""

from collections.abc import Callable

from ray_messaging.addressing.channels import mark_of_db

START = "start:"


def _key(kind: str) -> "Callable[[Keys, object], str]":
    """Return a method that builds the key of a thing of one kind, by its name or number."""
    return lambda keys, name: f"{keys.prefix}{kind}:{name}"


def _mailbox_key(kind: str) -> "Callable[[Keys, str], str]":
    """Return a method that builds a key of a mailbox.

    Mailboxes whose names begin with a colon are our own. Their keys belong to one start of the experiment.
    """
    return lambda keys, name: f"{keys.prefix}{START if name[0] == ':' else ''}{kind}:{name}"


class Keys:
    """The Redis keys of one experiment. Their common hash tag keeps them on one primary of a cluster.

    The name of a key, or of a field in a hash, says whether checkpoints contain it:

        start:...      belongs to one start of the experiment (its driver, groups, log, waiting clients): never
        box...@<step>  belongs to the boxes for a step: if no group has read these boxes
        anything else  belongs to the run: always

    Args: `tag` follows the name in the hash tag; it is not empty for keys of bodies on another primary (see
    `key_tags`). `db` is the server's db. Pub/Sub has no dbs, so the names of channels contain the db unless it is 0.
    """

    def __init__(self, exp_id: str, tag: str = "", *, db: int = 0) -> None:
        prefix = f"rm:{{{exp_id}{tag}}}:"
        start = prefix + START
        self.exp_id = exp_id
        self.prefix = prefix
        self.meta = prefix + "meta"
        self.records = prefix + "records"
        self.changes = prefix + "changes"
        self.rules = start + "rules"  # the name of the entry in Ray that has the active rules, then the rules' names
        self.answers = start + "answers"  # verdicts that depend on rules' counts
        self.dead = start + "dead"
        self.surveys = prefix + "surveys"  # the records of surveys
        self.seats = start + "seats"  # the seats of people: the secrets of their links, and what their pages show
        self.ended = start + "ended"  # streams of removed mailboxes that the event log still reads
        self.hearers = start + "hearers"  # sets of agents that broadcasts name, until the event log has them
        self.news = start + "news"  # a stream, whose entries wake those who wait for a step
        # The readers for which the boxes of steps are kept, each with the last step that it needs no more.
        self.holds = start + "holds"
        self.bodies = prefix + "bodies"  # the steps for which a server has bodies of large frames
        self.mark = start + "mark"  # written before WAIT, so that WAIT covers all earlier writes
        self.channels = f"exps:{exp_id}{mark_of_db(db)}:"  # Pub/Sub: the beginning of this experiment's channels
        self.own = f"{prefix}own{mark_of_db(db)}"  # Pub/Sub: marks before and after our own script's messages
        self.wide = self.own + ":wide"  # Pub/Sub: messagers that subscribe to all agents' channels, and filter
        self.ears = self.own + ":ear:"  # Pub/Sub, with a mailbox's name: subscribed while its messager is connected

    table = _key("rule")  # a rule's counts, by the rule's name
    staged = _key(START + "staged")  # a rule's counts that are to replace its former counts
    # A mailbox's stream, by `mailbox:born`: a later mailbox with the same name has another stream.
    stream = _mailbox_key("mailbox")
    # A mailbox's stream during a transaction, by the mailbox (see script `large_frames`).
    open_stream = _key(START + "open")
    ended_stream = _key(START + "ended")  # a removed mailbox's stream, by `mailbox:born`
    state = _mailbox_key("state")  # a mailbox's state: reader epoch, cursor, counts, limits
    lease = _key(START + "lease")  # a mailbox's lease, which its messager renews
    survey = _key("survey")  # a survey's parts: each round of questions, and its end
    step = _key("step")  # a group's progress through the steps
    sent = _key(START + "sent")  # what a group has sent in its open step
    results = _key(START + "results")  # what calls have returned in a group's open step
    box = _key("box")  # a box's stream
    cover = _key("box-cover")  # a box's size and cover
    bodies_of = _key("bodies")  # the bodies of large frames in boxes, by step
    sender = _key("sender")  # a sender's epoch and sequence numbers

    def steps(self, part: str = "") -> str:
        """Build the key of an experiment's steps, or of a part: "closed", "hears", "collected", or a step's number."""
        return f"{self.prefix}steps:{part}" if part else f"{self.prefix}steps"
