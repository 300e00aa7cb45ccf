"""The oracle: what a program's society does by the documents alone, in one loop, with dicts and lists."""

from collections import Counter, defaultdict
from fractions import Fraction

from societies.program import FITTING, acts_of, barred, chosen_in, hear, line, near, order, traits

OF_PAIRS = {"ban", "graph", "pairs", "sender_ban", "edge_ban"}  # kinds of rules that judge each hearer of a broadcast

SLOW = {"rude": True, "odd": ("pass", "mended", "mended"), "tag": ("pass", None, "seen")}  # what the slow rule finds


class Row:
    """A message to one recipient, with its fate."""

    def __init__(self, step, read, from_id, to_id, payload, topic, **more):
        self.step, self.read, self.from_id, self.to_id = step, read, from_id, to_id
        self.payload, self.before, self.topic = payload, None, topic
        self.fate, self.rule, self.labels = "delivered", None, []
        self.ordinal = self.audience = self.question = self.asker = None
        self.asks = self.outside = False
        vars(self).update(more)

    def take(self, rule, what, text, label):
        """Apply a rule's verdict."""
        if label is not None and label not in self.labels:
            self.labels.append(label)
        if what == "block":
            self.fate, self.rule = "blocked", rule.name
        elif text is not None:
            self.before = self.payload if self.before is None else self.before
            self.payload, self.rule = self.payload | {"t": text}, rule.name

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
            "quota": lambda: a is not None and self.too_much(a, b),
            "label": lambda: text == first and ("pass", None, f"has {first}"),
            "shout": lambda: ("pass", f"{text}!", "shouted"),
            "fails": lambda: text == first and self.settings[1] == "block",
            "slow": lambda: SLOW.get(text),
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

    def too_much(self, a, b):
        contacts, blocked = self.settings
        if blocked is not None and self.blocks[a] - self.before[a] >= blocked:
            return True
        met = self.met[a] | {b}
        if contacts is not None and b is not None and len(met) <= contacts:
            self.met[a] = met
        return contacts is not None and b is not None and len(met) > contacts

    def new_round(self):
        self.met, self.before = defaultdict(set), self.blocks.copy()
        if self.kind == "rate":
            self.counts.clear()


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
        self.said = []  # from outside, in which a reminder names those whom it asks
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
        asked = self.surveys[-1] if verb == "remind" else None
        if asked is not None:
            given = [[each for each in asked.asked if asked.state(each) in {"pending", "invalid"}], *asked.said]
        self.said.append([step, "ask" if verb == "remind" else verb, *given])
        to, text, topic = given if verb != "broadcast" else (self.hearers("*", None, given[1]), *given)
        if verb in {"ask", "survey"}:
            asked = Asked(to, [text, topic])
            (self.asked if verb == "ask" else self.surveys).append(asked)
        rows = [Row(step, step, None, each, {"t": text}, topic) for each in (to if isinstance(to, list) else [to])]
        for n, row in enumerate(rows):
            row.outside, row.asks, row.asker = True, asked is not None, (asked, n)
            row.audience = "*" if verb == "broadcast" else None
        for part in [rows] if verb == "broadcast" else ([row] for row in rows):
            self.judge(part)
        for row in rows if asked is not None else ():
            asked.fates[row.to_id].append(row.fate)
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
            found = set() if at is None else {a for a, b in self.places.items() if near(at, b)}
        else:
            found = {*made["club"]} if audience == "club" else {a for a in made["agents"] if self.listens(a, topic)}
        return sorted(found - {from_id} if audience != "friends" else found, key=order)

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
            parts = []
            if verb == "walk" and agent in self.places:
                walked[agent] = given
            elif verb == "stop":
                self.stopped.add(agent)
            elif verb == "answer":
                parts, asked = [[self.row(step, agent, q.from_id, *given, q.topic, 1, question=q)] for q in asked], []
            elif verb == "ask":
                parts = [[self.row(step, agent, *given[:2], "agent-chat", given[2], asks=True)]]
            elif verb == "send":
                parts = [[self.row(step, agent, *given)]]
            elif verb == "broadcast":
                to, *more = given
                parts = [[self.row(step, agent, b, *more, audience=to) for b in self.hearers(to, agent, given[2])]]
            for part in parts:
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
        for rule in rules if rows else ():
            once = None if rule.of_pairs or not left else rule.verdict(left[0])
            for row in left:
                row.take(rule, *(once or rule.verdict(row)))
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
                row.take(rule, "block", None, None)
                self.blocks[row.from_id] += 1
            elif row.payload["t"] == word:
                row.take(rule, "pass", "better", "bettered")
        rule.counts["seen"] += len(passed)
        text = {"t": f"{rule.counts['seen']} seen"}
        return [Row(step, step + 1, "warden", 0, text, "agent-chat", rule=rule.name)]

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
        ids = chosen_in(self.made)
        if self.made["collect"] == "agents":
            self.series += [{"step": step, "agent": agent, **found[agent]} for agent in sorted(ids or found, key=order)]
        elif self.made["collect"]:
            counts = Counter(each["k"] for each in found.values())
            mean = float(Fraction(sum(each["n"] for each in found.values()), len(found)))
            row = {"step": step, "n": mean, **{f"k={k}": count for k, count in counts.items()}}
            if ids:
                row["m"] = sum(found[agent]["n"] for agent in ids)
                row |= {f"c={k}": count for k, count in Counter(found[agent]["k"] for agent in ids).items()}
            self.series.append(row)


class Asked:
    """Questions of the user: those of a survey, with the answers of each agent, or others, with those of each place."""

    def __init__(self, asked, said):
        self.asked, self.said = asked, said
        self.answers, self.fates = defaultdict(list), defaultdict(list)

    def state(self, agent):
        if texts := {each["t"] for each in self.answers[agent]}:
            return "answered" if texts & {*FITTING} else "invalid"
        return "pending" if "delivered" in self.fates[agent] else self.fates[agent][0]
