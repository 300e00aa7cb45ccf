"""Random programs of societies, as plain data: who says what to whom in which step, under which rules."""

import json
import random
from hashlib import blake2b
from pprint import pformat
from zlib import crc32

NOBODY = (999, "nobody")
PLACE = "(3, 4)"  # the id of an agent that is given as a tuple
TEXTS = ("mild", "rude", "odd", "tag", "a long text of more than forty bytes in all")
AUDIENCES = ("friends", "club", "near", "*")
SUBTOPICS = ("agent-chat", "user-chat", "gossip")  # few agents listen to gossip
FITTING = ("mild", "rude", "odd!")  # answers to a survey that fit
RADIUS = 1.5
VICTIMS = ("driver", "group", "interceptor", "log", "server")

# What a program may have. Args of `program`: without one of them its acts, or rules, are left out.
FEATURES = frozenset(
    {
        "broadcasts", "everybody", "positions", "gossip", "later", "asks", "moves", "stops", "names", "crowds",
        "rules", "rewrites", "rewritten_broadcasts", "slow", "steprules", "whole_broadcasts", "changes",
        "outside", "outside_broadcasts", "surveys", "collect", "forks", "deaths",
    }
)  # fmt: skip


def program(seed, features=FEATURES):
    """Return a random program.

    `acts` are what agents do, each [step, agent, verb, ...], in the order in which an agent does them. `outside` is
    what the user does before a step, `changes` are those of the rules. `deaths` are [step, agent, victim]: who dies
    when the agent takes this step.
    """
    draw = random.Random(f"society {seed}")
    has = {name: name in features and draw.random() < 0.6 for name in sorted(features)}
    count, steps = draw.randint(3, 9), draw.randint(2, 6)
    agents = [*range(count), *(["ann", "b:1", *([PLACE] if seed % 3 == 0 else [])] if has.get("names") else [])]
    made = {
        "seed": seed,
        "agents": agents,
        "steps": steps,
        "by": "group" if has.get("crowds") else "agent",
        "friends": sorted({(draw.randrange(count), draw.randrange(count)) for _ in range(draw.randint(1, 2 * count))}),
        "club": sorted(draw.sample(agents, draw.randint(0, len(agents))), key=order),
        "near": {agent: [draw.randint(0, 4), draw.randint(0, 4)] for agent in range(count)},
        "gossip": [agent for agent in agents if draw.random() < 0.4] if has.get("gossip") else [],
        "rules": [],
        "changes": [],
        "acts": [],
        "outside": [],
        "deaths": [],
        "collect": draw.choice(["agents", "steps"]) if has.get("collect") else None,
        "chosen": chosen(seed, agents) if has.get("collect") else None,
        "ahead": None if has.get("crowds") else ahead(seed),
        "fork": None,
    }
    writer = Writer(draw, made, has)
    writer.write()
    if has.get("forks"):
        made["fork"] = writer.fork()
    if has.get("deaths"):
        victims = draw.sample(VICTIMS, draw.randint(1, 3))
        made["deaths"] = [[draw.randrange(steps), draw.choice(agents), victim] for victim in victims]
    return made


def ahead(seed):
    """Return for how many steps agents may run ahead; in every other program None."""
    draw = random.Random(f"ahead {seed}")
    return draw.randint(1, 5) if draw.random() < 0.5 else None


def chosen(seed, agents):
    """Return the agents of which something is collected by itself; in every other program None."""
    draw = random.Random(f"chosen {seed}")
    return draw.sample(agents, draw.randint(1, len(agents))) if draw.random() < 0.5 else None


def chosen_in(made):
    """Return those of the chosen agents that a program still has, or None."""
    return [agent for agent in made["chosen"] or () if agent in made["agents"]] or None


def forked(made):
    """Return the program of a fork, which is another one from a step on, or the same."""
    at, more, less = (made["fork"][name] for name in ("at_step", "acts", "without"))
    kept = [act for act in made["acts"] if act[0] < at or act[1] != less]
    changes = [*made["changes"], *made["fork"]["changes"]]
    return made | {"acts": [*kept, *more], "changes": changes, "fork": None, "deaths": []}


def order(agent):
    """Return the key of the canonical order of ids: None, then ints, then strs."""
    return (0, 0, "") if agent is None else (1, agent, "") if isinstance(agent, int) else (2, 0, agent)


class Writer:
    """Writer of the random parts of a program."""

    def __init__(self, draw, made, has):
        self.draw, self.made, self.has = draw, made, has
        self.judged = has.get("steprules") and not has.get("whole_broadcasts")  # then there are no broadcasts
        self.names = 0

    def write(self):
        made, draw = self.made, self.draw
        if self.has.get("rules"):
            made["rules"] = [self.rule() for _ in range(draw.randint(1, 3))]
            self.change()
        if self.has.get("steprules"):
            made["rules"].append(["crowd", self.name("crowd"), draw.randint(1, 3), draw.choice(TEXTS[:4])])
        share = draw.choice([0.3, 0.7, 1.0])
        for step in range(made["steps"]):
            for agent in made["agents"]:
                while draw.random() < share * 0.6:
                    made["acts"].append([step, agent, *self.act(step)])
            while step and self.has.get("outside") and draw.random() < 0.3:
                made["outside"].append([step, *self.from_outside()])
            while step and self.has.get("surveys") and draw.random() < 0.4:
                self.ask_from_outside(step)
        made["acts"] = made["acts"] or [[0, made["agents"][0], "send", made["agents"][-1], "mild", "agent-chat", 1]]

    def fork(self):
        """Return a fork: its step, how often the parent keeps a checkpoint, and what changes from the step on."""
        draw, made = self.draw, self.made
        every = draw.randint(1, 3)
        at = draw.randint(1, made["steps"])
        found = {"every": every, "at_step": at, "acts": [], "without": None, "changes": []}
        if draw.random() < 0.6 and at < made["steps"]:
            kind = draw.choice(["acts", "without", "changes"])
            if kind == "acts":
                found["acts"] = [[at, agent, *self.act(at)] for agent in made["agents"] if draw.random() < 0.5]
            elif kind == "without":
                found["without"] = draw.choice(made["agents"])
            else:
                found["changes"] = [[at, "insert", 0, ["pairs", self.name("pairs"), 2]]]
        return found

    def act(self, step):
        draw, has = self.draw, self.has
        later = draw.choice([1, 1, 1, 2, 3]) if has.get("later") else 1
        text, topic = draw.choice(TEXTS), self.topic()
        verbs = ["send"] * 5
        verbs += ["broadcast"] * 3 if has.get("broadcasts") and not self.judged else []
        verbs += ["ask", "ask", "answer", "answer"] if has.get("asks") else []
        verbs += ["move"] if has.get("moves") and self.made["by"] == "agent" else []
        verbs += ["walk"] if has.get("positions") and self.made["by"] == "group" else []
        verbs += ["stop"] if has.get("stops") and self.made["by"] == "agent" and draw.random() < 0.2 else []
        verb = draw.choice(verbs)
        if verb == "send":
            return [verb, self.anybody(), text, topic, later]
        if verb == "broadcast":
            names = AUDIENCES if has.get("everybody") else AUDIENCES[:3]
            return [verb, draw.choice(names), text, topic, later]
        if verb == "ask":
            return [verb, self.anybody(), text, later]
        if verb == "walk":
            return [verb, draw.randint(0, 4), draw.randint(0, 4)]
        return {"answer": [verb, text], "move": [verb, draw.randint(0, 3)], "stop": [verb]}[verb]

    def from_outside(self):
        draw = self.draw
        if self.has.get("outside_broadcasts") and draw.random() < 0.4:
            return ["broadcast", draw.choice(TEXTS), self.topic()]
        return ["send", self.anybody(), draw.choice(TEXTS), self.topic()]

    def ask_from_outside(self, step):
        """Let the user ask agents, by questions, by a survey, or by a reminder of the last survey; most answer."""
        draw, made = self.draw, self.made
        asked = [self.anybody() for _ in range(draw.randint(1, len(made["agents"])))]
        surveys = [act for act in made["outside"] if act[1] == "survey"]
        verb = draw.choice(["ask", "survey", *(["remind", "remind"] if surveys else [])])
        if verb == "survey":
            asked = sorted(set(asked), key=order)
        made["outside"].append([step, verb, *([asked, draw.choice(TEXTS), self.topic()] if verb != "remind" else [])])
        for agent in surveys[-1][2] if verb == "remind" else dict.fromkeys(asked):
            if agent in made["agents"] and draw.random() < 0.7:
                made["acts"].append([step, agent, "answer", draw.choice(TEXTS)])

    def topic(self):
        return self.draw.choice(SUBTOPICS) if self.has.get("gossip") else SUBTOPICS[0]

    def anybody(self):
        return self.draw.choice([*self.made["agents"]] * 4 + [*NOBODY])

    def name(self, kind):
        self.names += 1
        return f"{kind}{self.names}"

    def rule(self):
        draw, has = self.draw, self.has
        word = draw.choice(TEXTS[:4])
        kinds = ["ban", "pairs", "words", "length", "rate", "said", "label", "sender_ban", "edge_ban", "fails", "graph"]
        kinds += ["quota"] * 2
        kinds += ["shout", "mask"] if self.may_rewrite() else []
        kinds += ["slow"] if has.get("slow") and self.may_rewrite() else []
        kind = draw.choice(kinds)
        settings = {
            "ban": [[[self.anybody(), draw.choice([None, self.anybody()])] for _ in range(draw.randint(1, 4))]],
            "graph": [sorted({(self.number(), self.number()) for _ in range(20)})],
            "pairs": [draw.randint(2, 5)],
            "length": [draw.randint(40, 80)],
            "rate": [draw.randint(1, 4)],
            "said": [draw.randint(1, 6)],
            "quota": draw.choice([[1, None], [2, None], [None, 1], [None, 2], [2, 1]]),
            "shout": [],
            "slow": [],
            "sender_ban": [word, draw.randint(1, 3)],
            "edge_ban": [word, draw.randint(1, 2)],
            "fails": [word, draw.choice(["block", "allow"])],
        }
        return [kind, self.name(kind), *settings.get(kind, [word])]

    def number(self):
        return self.draw.choice([agent for agent in self.made["agents"] if isinstance(agent, int)])

    def may_rewrite(self):
        has = self.has
        broadcasts = (has.get("broadcasts") and not self.judged) or (
            has.get("outside") and has.get("outside_broadcasts")
        )
        return has.get("rewrites") and (has.get("rewritten_broadcasts") or not broadcasts)

    def change(self):
        """Insert, replace and remove rules from steps on."""
        draw, names = self.draw, [rule[1] for rule in self.made["rules"]]
        for step in range(self.made["steps"]) if self.has.get("changes") else ():
            if draw.random() < 0.5:
                continue
            change = draw.choice(["insert", "replace", "remove"] if names else ["insert"])
            which = draw.randint(0, len(names)) if change == "insert" else draw.choice(names)
            rule = None if change == "remove" else self.rule()
            self.made["changes"].append([step, change, which, rule])
            if change != "insert":
                names.remove(which)
            if rule is not None:
                names.append(rule[1])


def hear(words, step, heard, blocked):
    """Return what an agent knows after a step: its words so far, and a hash of all that it has in hand, in order.

    Args: `heard` are [from_id, payload, labels, subtopic, step sent, whether it asks, what it answers], `blocked` are
    [message_id, to_id, rule].
    """
    text = json.dumps([words, step, heard, blocked])
    return f"{words} {blake2b(text.encode(), digest_size=3).hexdigest()}".strip()


def barred(from_id, to_id, parts):
    """Return whether a rule on pairs blocks this one."""
    return crc32(f"{from_id} {to_id}".encode()) % parts == 0


def traits(words):
    """Return what is collected of an agent."""
    number = int(words[-6:], 16)
    return {"n": number % 100, "k": ("even", "odd")[number % 2]}


def near(a, b):
    return (a[0] - b[0]) ** 2 + (a[1] - b[1]) ** 2 <= RADIUS**2


def line(payload):
    return json.dumps(payload, separators=(",", ":"))


def acts_of(made, step, agent):
    """Return what an agent does in a step."""
    return [act[2:] for act in made["acts"] if act[:2] == [step, agent]]


PARTS = ("fork", "deaths", "acts", "outside", "changes", "rules", "friends", "club", "gossip", "agents")


def smaller(made, fails):
    """Return a smaller program that still fails, by leaving out parts, then single items. `fails(program)` says so."""
    for part in PARTS:
        if part == "fork":
            made = less if fails(less := made | {"fork": None}) else made
            continue
        size = max(1, len(made[part]) // 2)
        while made[part]:
            tried = False
            for low in range(0, len(made[part]), size):
                less = made | {part: made[part][:low] + made[part][low + size :]}
                if less["agents"] and fails(less):
                    made, tried = less, True
                    break
            if tried:
                continue
            if size == 1:
                break
            size = max(1, size // 2)
    return made


def shown(made):
    """Return a program as text that Python reads."""
    return pformat(made, width=120, sort_dicts=False)
