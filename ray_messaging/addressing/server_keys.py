"""The keys of an experiment on the server. Only this file builds their names, which say what a checkpoint contains."""

from collections.abc import Callable

from ray_messaging.addressing.channels import mark_of_db

START = "start:"


def _key(kind: str) -> "Callable[[Keys, object], str]":
    """Return a method that builds the key `<kind>:<name>` of an experiment. The name may be a number."""
    return lambda keys, name: f"{keys.prefix}{kind}:{name}"


def _mailbox_key(kind: str) -> "Callable[[Keys, str], str]":
    """Return a method that builds a key of a mailbox.

    A name that begins with a colon, such as ":log", stands for something else than a mailbox. Its key belongs to one
    start of the experiment.
    """
    return lambda keys, name: f"{keys.prefix}{START if name[0] == ':' else ''}{kind}:{name}"


class Keys:
    """The Redis keys of one experiment. Their common hash tag keeps them on one primary of a cluster.

    The name of a key, or of a field in a hash, says whether checkpoints contain it:

        start:...      never: it belongs to one start of the experiment (its driver, groups, log, waiting clients)
        box...@<step>  only if no group has read the boxes for this step (the messages that groups read in it)
        anything else  always: it belongs to the run

    Args: `tag` follows the experiment's name in the hash tag. It is empty, except for keys of message bodies on another
    primary (see `key_tags`). `db` is the server's db. Pub/Sub has no dbs, so the names of channels contain the db
    unless it is 0.
    """

    def __init__(self, exp_id: str, tag: str = "", *, db: int = 0) -> None:
        prefix = f"rm:{{{exp_id}{tag}}}:"
        start = prefix + START
        self.exp_id = exp_id
        self.prefix = prefix
        self.meta = prefix + "meta"
        self.records = prefix + "records"
        self.changes = prefix + "changes"
        # A list. Its first item is the name of the entry in Ray's key-value store that has the rules in force. The
        # other items are the names of these rules.
        self.rules = start + "rules"
        self.answers = start + "answers"  # the verdicts that depend on rules' counts
        self.dead = start + "dead"
        self.surveys = prefix + "surveys"  # the records of all surveys
        self.seats = start + "seats"  # the seats of people: the secrets of their links, and what their pages show
        self.ended = start + "ended"  # streams of removed mailboxes that the event log still reads
        # A hash: sets of agents, by the digests that stand for the sets in broadcasts. The event log removes each set
        # once it has stored the set in its folder.
        self.hearers = start + "hearers"
        self.news = start + "news"  # a stream, whose entries wake the processes that wait for a step
        # A stream: reports of groups about agents that have begun a step before all groups have closed the
        # previous step.
        self.told = start + "told"
        # A stream: copies of those entries of the stream `news` by which a run opens a step for its groups.
        self.openings = start + "openings"
        # The readers for which the boxes of steps are kept, each with the last step whose boxes it has read.
        self.holds = start + "holds"
        self.bodies = prefix + "bodies"  # the steps for which a server has bodies of large frames
        self.mark = start + "mark"  # written before WAIT, so that WAIT covers all earlier writes
        self.channels = f"exps:{exp_id}{mark_of_db(db)}:"  # the beginning of this experiment's channels in Pub/Sub
        # A Pub/Sub channel. When one of our Lua scripts publishes messages on other channels, it publishes "(" on this
        # channel before the messages, and ")" after them.
        self.own = f"{prefix}own{mark_of_db(db)}"
        # A Pub/Sub channel. Messagers that subscribe to the pattern of all agents' channels also subscribe to this one.
        self.wide = self.own + ":wide"
        # The beginning of the names of Pub/Sub channels. Each mailbox has one such channel, and its messager is
        # subscribed to this channel for as long as the messager is connected.
        self.ears = self.own + ":ear:"

    table = _key("rule")  # the counts of a rule, by the rule's name
    staged = _key(START + "staged")  # new counts of a rule, which will replace the counts in `table`
    # A mailbox's stream, by `mailbox:born`. If a mailbox is removed, and later made again with the same name, it has
    # another number `born`, and so another stream.
    stream = _mailbox_key("mailbox")
    # A mailbox's stream, by the mailbox's name, while a transaction appends large frames. For this time, a script gives
    # the stream this key in place of the key `stream` (see `transports/large_frames.py`).
    open_stream = _key(START + "open")
    ended_stream = _key(START + "ended")  # the stream of a removed mailbox, by `mailbox:born`
    state = _mailbox_key("state")  # the state of a mailbox: reader epoch, cursor, counts, limits
    lease = _key(START + "lease")  # the lease of a mailbox, which its messager renews
    survey = _key("survey")  # the items of a survey: each round of questions, and the survey's end
    step = _key("step")  # a group's progress in the steps
    sent = _key(START + "sent")  # the frames that a group has sent in its open step
    results = _key(START + "results")  # the results of remembered calls in a group's open step
    box = _key("box")  # the stream of a box
    cover = _key("box-cover")  # the size of a box, and which groups' frames in it are valid
    bodies_of = _key("bodies")  # the bodies of large frames in boxes, by step
    sender = _key("sender")  # the epoch and the sequence numbers of a sender

    def steps(self, part: str = "") -> str:
        """Build the key `steps` of the experiment, or with `part` the key `steps:<part>`.

        Args: `part` is "closed", "hears", "collected", or a step's number.
        """
        return f"{self.prefix}steps:{part}" if part else f"{self.prefix}steps"
