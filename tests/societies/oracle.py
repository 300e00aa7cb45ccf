"""The oracle: what a program's society does by the documents alone, in one loop, with dicts and lists."""

import json
from collections import Counter, defaultdict
from difflib import SequenceMatcher
from fractions import Fraction
from itertools import zip_longest

from societies.program import FITTING, acts_of, barred, hear, order, traits

OF_PAIRS = {"ban", "graph", "pairs", "sender_ban", "edge_ban"}  # kinds of rules that judge each hearer of a broadcast
ASKING = {"ask", "survey", "remind"}
RADIUS = 1.5


class Row:
    """A message to one recipient, with its fate."""

    def __init__(self, step, read, from_id, to_id, payload, topic, **more):
        self.step, self.read, self.from_id, self.to_id = step, read, from_id, to_id
        self.payload, self.before, self.topic = payload, None, topic
        self.fate, self.rule, self.labels = "delivered", None, []
        self.ordinal = self.audience = self.question = self.asker = None
        self.asks = self.outside = False
        vars(self).update(more)

    @property
    def id(self):
        return f"{self.step}-{self.ordinal}-{self.from_id}"

    @property
    def reply(self):
        """Return the name of the question that it answers."""
        return self.question and self.question.name

    @property
    def name(self):
        """Return its id, or for what is not an agent's, whose ids the documents do not tell, what it says."""
        return f"{self.from_id}: {line(self.payload)}" if self.from_id in {None, "warden"} else self.id


class Rule:
    """A rule with what it remembers. `blocks` counts how many messages of each agent any rule has blocked so far."""

    def __init__(self, blocks, kind, name, *settings):
        self.kind, self.name, self.settings, self.blocks = kind, name, settings, blocks
        self.of_pairs = kind in OF_PAIRS or (kind == "quota" and settings[0] is not None)
        self.counts = Counter()
        self.new_round()

    def verdict(self, row):
        """Return (what, new text, label): what is "block", "pass" or "fail"."""
        text, a, b, first = row.payload["t"], row.from_id, row.to_id, self.settings[0] if self.settings else None
        found = {
            "ban": lambda: any(one in (a, None) and other in (b, None) for one, other in first),
            "graph": lambda: a is not None and b is not None and (a, b) not in {tuple(edge) for edge in first},
            "pairs": lambda: barred(a, b, first),
            "words": lambda: first in text.rstrip("!").split(),
            "mask": lambda: first in text.rstrip("!").split() and ("pass", text.replace(first, "***"), None),
            "length": lambda: len(line(row.payload)) > first,
            "rate": lambda: a is not None and self.counted(a, first),
            "said": lambda: self.counted(str(a), first),
            "quota": lambda: a is not None and (self.silenced(a) or self.strange(a, b)),
            "label": lambda: text == first and ("pass", None, f"has {first}"),
            "shout": lambda: ("pass", f"{text}!", "shouted"),
            "fails": lambda: text == first and self.settings[1] == "block",
            "slow": lambda: {"rude": True, "odd": ("pass", "mended", "mended"), "tag": ("pass", None, "seen")}.get(text),
            "sender_ban": lambda: self.banned(text, a),
            "edge_ban": lambda: self.banned(text, None if a is None else (a, b)),
        }[self.kind]()
        return ("block", None, None) if found is True else found or ("pass", None, None)

    def counted(self, key, most):
        """Return whether this is too much, else count it."""
        self.counts[key] += 1
        return self.counts[key] > most

    def banned(self, text, key):
        word, after = self.settings
        if key is not None and self.counts[key] >= after:
            return True
        self.counts[key] += text == word
        return text == word

    def silenced(self, a):
        return self.settings[1] is not None and self.blocks[a] - self.before[a] >= self.settings[1]

    def strange(self, a, b):
        most = self.settings[0]
        if most is None or b is None or b in self.met[a]:
            return False
        if len(self.met[a]) < most:
            self.met[a].add(b)
            return False
        return True

    def new_round(self):
        self.met, self.before = defaultdict(set), self.blocks.copy()
        if self.kind == "rate":
            self.counts.clear()


def line(payload):
    return json.dumps(payload, separators=(",", ":"))


class Oracle:
    """A society; `run` lets it live through its steps."""

    def __init__(self, made):
        self.made = made
        self.words = dict.fromkeys(made["agents"], "")
        self.stopped, self.places = set(), dict(made["near"])
        self.blocks = Counter()
        self.rules = [Rule(self.blocks, *each) for each in made["rules"]]
        self.inboxes = defaultdict(list)  # (step, agent) -> rows
        self.hands = {}  # (agent, step) -> rows, in order
        self.rows, self.fates, self.series = [], [], []
        self.asked, self.surveys = [], []  # questions and surveys of the user
        self.blocked = defaultdict(list)  # agent -> rows of the step before

    def run(self):
        for step in range(self.made["steps"]):
            for change in self.made["changes"]:
                if change[0] == step:
                    self.change(*change[1:])
            for at, verb, *given in self.made["outside"]:
                if at == step and (verb != "remind" or self.surveys):
                    self.from_outside(step, verb, *given)
            self.step(step)
        return self

    def change(self, change, which, rule):
        place = which if change == "insert" else [each.name for each in self.rules].index(which)
        self.rules[place : place + (change != "insert")] = [] if rule is None else [Rule(self.blocks, *rule)]

    def from_outside(self, step, verb, *given):
        if verb == "remind":
            given = [[a for a in self.surveys[-1].asked if self.surveys[-1].state(a) in {"pending", "invalid"}]]
            given += self.surveys[-1].said
        *to, text, topic = given
        hearers = self.hearers("*", None, topic) if verb == "broadcast" else to[0] if verb in ASKING else to
        audience, asks = "*" if verb == "broadcast" else None, verb in ASKING
        rows = [Row(step, step, None, to, {"t": text}, topic, audience=audience, asks=asks) for to in hearers]
        if verb in {"ask", "survey"}:
            (self.asked if verb == "ask" else self.surveys).append(Asked(hearers, [text, topic]))
        for n, row in enumerate(rows):
            row.outside, row.asker = True, asks and ((self.asked if verb == "ask" else self.surveys)[-1], n)
            if audience is None:
                self.judge([row])
        if audience is not None:
            self.judge(rows)
        for row in rows if verb in {"survey", "remind"} else ():
            self.surveys[-1].fates[row.to_id].append(row.fate)
        self.send(rows)

    def why(self, row, depth, most):
        """Return a message, the trees of what its sender had in hand, its question first, and how many more it had."""
        if not depth or row.from_id not in self.words:
            return row.name, [], 0
        hand = self.hands[row.from_id, row.step]
        shown = sorted(hand, key=lambda each: each is not row.question)[:most]
        return row.name, [self.why(each, depth - 1, most) for each in shown], len(hand) - len(shown)

    def hearers(self, audience, from_id, topic):
        made = self.made
        if audience == "friends":
            found = {b for a, b in made["friends"] if a == from_id}
        elif audience == "near":
            at = self.places.get(from_id)
            found = set() if at is None else {a for a, b in self.places.items() if near(at, b)} - {from_id}
        else:
            found = {*made["club"]} if audience == "club" else {a for a in made["agents"] if self.listens(a, topic)}
            found -= {from_id}
        return sorted(found, key=order)

    def listens(self, agent, topic):
        return agent in self.made["agents"] and (topic != "gossip" or agent in self.made["gossip"])

    def step(self, step):
        sent, walked = [], {}
        blocked, self.blocked = self.blocked, defaultdict(list)
        for agent in sorted(self.made["agents"], key=order):
            inbox = sorted(self.inboxes[step, agent], key=lambda row: (row.step, order(row.from_id), row.ordinal))
            self.hands[agent, step] = inbox
            if agent not in self.stopped:
                sent += self.live(step, agent, inbox, blocked[agent], walked)
        self.places |= walked
        added = [row for rule in self.rules if rule.kind == "crowd" for row in self.review(rule, step, sent)]
        self.send([*sent, *added])
        self.fates.append(dict(Counter(row.fate for row in (*sent, *added))))
        for rule in self.rules:
            rule.new_round()
        self.collect(step)

    def live(self, step, agent, inbox, blocked, walked):
        """Let an agent hear and act; return what it has sent, judged."""
        heard = [[r.from_id, r.payload, sorted(r.labels), r.topic, r.step, r.asks, r.reply] for r in inbox]
        blocked = [[r.id, r.to_id, r.rule] for r in sorted(blocked, key=lambda row: (row.ordinal, order(row.to_id)))]
        self.words[agent] = hear(self.words[agent], step, heard, blocked)
        sent, ordinal = [], 0
        asked = [row for row in inbox if row.asks]
        for verb, *given in acts_of(self.made, step, agent):
            rows = []
            if verb == "walk" and agent in self.places:
                walked[agent] = given
            elif verb == "stop":
                self.stopped.add(agent)
            elif verb == "answer":
                rows = [[self.row(step, agent, q.from_id, given[0], q.topic, 1, question=q)] for q in asked]
                asked = []
            elif verb == "ask":
                rows = [[self.row(step, agent, given[0], given[1], "agent-chat", given[2], asks=True)]]
            elif verb in {"send", "broadcast"}:
                to, *more = given
                hearers = [to] if verb == "send" else self.hearers(to, agent, given[2])
                audience = to if verb == "broadcast" else None
                rows = [[self.row(step, agent, each, *more, audience=audience) for each in hearers]]
            for part in rows:
                for row in part:
                    row.ordinal = ordinal
                ordinal += 1
                self.judge(part)
                sent += part
        return sent

    def row(self, step, agent, to_id, text, topic, later, **more):
        return Row(step, step + later, agent, to_id, {"t": text, "w": self.words[agent][-6:]}, topic, **more)

    def judge(self, rows):
        """Apply the rules to what one agent says to one or several: those on pairs first if it is a broadcast."""
        rules = [rule for rule in self.rules if rule.kind != "crowd"]
        if rows and rows[0].audience is not None:
            rules.sort(key=lambda rule: not rule.of_pairs)
        left = rows
        for rule in rules:
            verdicts = [rule.verdict(row) for row in left] if rule.of_pairs else None
            if verdicts is None and left:
                verdicts = [rule.verdict(left[0])] * len(left)
            for row, verdict in zip(left, verdicts or (), strict=True):
                take(row, rule, *verdict)
            left = [row for row in left if row.fate != "blocked"]
        for row in left:
            if row.to_id is not None and not self.listens(row.to_id, row.topic):
                row.fate = "undeliverable"
        self.blocks.update(row.from_id for row in rows if row.fate == "blocked")

    def review(self, rule, step, sent):
        """Let a rule on whole steps judge what others let pass; return what it adds."""
        most, word = rule.settings
        heard = Counter()
        passed = [row for row in sent if row.fate == "delivered" and row.to_id is not None]
        for row in sorted(passed, key=lambda row: (order(row.to_id), row.step, order(row.from_id), row.ordinal)):
            heard[row.to_id] += 1
            if heard[row.to_id] > most:
                take(row, rule, "block", None, None)
                self.blocks[row.from_id] += 1
            elif row.payload["t"] == word:
                take(row, rule, "pass", "better", "bettered")
        rule.counts["seen"] += len(passed)
        row = Row(step, step + 1, "warden", 0, {"t": f"{rule.counts['seen']} seen"}, "agent-chat", rule=rule.name)
        return [row]

    def send(self, rows):
        for row in rows:
            self.rows.append(row)
            if row.fate == "delivered" and row.to_id is None:
                asked, place = row.question.asker
                asked.answers[place if asked in self.asked else row.from_id].append(row.payload)
            elif row.fate == "delivered":
                self.inboxes[row.read, row.to_id].append(row)
            if row.fate == "blocked" and row.from_id in self.words:
                self.blocked[row.from_id].append(row)

    def collect(self, step):
        found = {agent: traits(words) for agent, words in self.words.items()}
        if self.made["collect"] == "agents":
            self.series += [{"step": step, "agent": agent, **found[agent]} for agent in sorted(found, key=order)]
        elif self.made["collect"]:
            counts = Counter(each["k"] for each in found.values())
            mean = float(Fraction(sum(each["n"] for each in found.values()), len(found)))
            self.series.append({"step": step, "n": mean, **{f"k={k}": count for k, count in counts.items()}})


class Asked:
    """Questions of the user: those of a survey, with the answers of each agent, or others, with those of each place."""

    def __init__(self, asked, said):
        self.asked, self.said = asked, said
        self.answers, self.fates = defaultdict(list), defaultdict(list)

    def fitting(self, agent):
        return [each for each in self.answers[agent] if each["t"] in FITTING]

    def state(self, agent):
        if self.answers[agent]:
            return "answered" if self.fitting(agent) else "invalid"
        fates = self.fates[agent]
        return "pending" if "delivered" in fates else fates[0]


def compared(mine, theirs):
    """Return for each step in which two runs differ: how many messages do, and how many agents sent them."""
    found = {}
    for step in range(mine.made["steps"]):
        one, other = said_in(mine, step), said_in(theirs, step)
        agents = [agent for agent in {*one, *other} if one[agent] != other[agent]]
        if agents:
            found[step] = sum(changed(one[agent], other[agent]) for agent in agents), len(agents)
    return found


def said_in(run, step):
    """Return what each agent has said in a step, in order; of a broadcast those who hear it unchanged are one."""
    rows, found = {}, defaultdict(list)
    for row in (row for row in run.rows if row.step == step and not row.outside):
        whole = row.audience is not None and row.fate == "delivered" and row.before is None
        rows[order(row.from_id), row.ordinal or 0, order(None if whole else row.to_id)] = row, whole
    for _, (row, whole) in sorted(rows.items()):
        rule, asked = row.rule if row.fate == "blocked" else None, row.question
        said = row.read, row.topic, row.audience, row.fate, rule, sorted(row.labels), line(row.payload), row.asks
        found[row.from_id].append((None if whole else row.to_id, str(said), asked and (asked.step, asked.from_id)))
    return found


def changed(one, other):
    """Return how many messages differ, where of those that neither run has in common those to one agent are paired."""
    count = 0
    for kind, *ends in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        for to in {said[0] for said in (*one[ends[0] : ends[1]], *other[ends[2] : ends[3]])} if kind != "equal" else ():
            sides = ([said for said in part if said[0] == to] for part in (one[slice(*ends[:2])], other[slice(*ends[2:])]))
            count += sum(a != b for a, b in zip_longest(*sides))
    return count


def take(row, rule, what, text, label):
    """Apply a rule's verdict to a message."""
    if label is not None and label not in row.labels:
        row.labels = [*row.labels, label]
    if what == "block":
        row.fate, row.rule = "blocked", rule.name
    elif text is not None:
        row.before = row.payload if row.before is None else row.before
        row.payload, row.rule = row.payload | {"t": text}, rule.name


def near(a, b):
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 <= RADIUS**2
