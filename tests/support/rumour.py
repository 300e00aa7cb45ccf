"""A rumour on a graph whose result depends on the order of each inbox, and the same in one loop without messaging."""

import gzip
import json
import random
from hashlib import blake2b
from struct import pack

NOBODY = 10**9  # an agent that no group hosts
BLOCKED = 13  # words that begin so are blocked, where the experiment has the rule


class Rumour:
    """A graph, its first agents that know the rumour, and how agents hear it and tell it.

    An agent's state is [the step in which it heard the rumour (-1: not yet), a chain of hashes over all that it heard].
    Each word has `pad` bytes more than it needs.
    """

    def __init__(self, edges, steps=20, chance=13, first=3, pad=0):
        self.friends, self.steps, self.chance, self.pad = {}, steps, chance, pad
        for one, other in sorted(set(edges)):
            self.friends.setdefault(one, []).append(other)
            self.friends.setdefault(other, [])
        self.agents = sorted(self.friends)
        self.first = set(sorted(self.agents, key=lambda agent: -len(self.friends[agent]))[:first])

    def edges(self):
        """Return all pairs of an agent and its friend."""
        return [(agent, friend) for agent, friends in self.friends.items() for friend in friends]

    def parts(self, count, *, senders):
        """Return the agents of so many groups.

        Where groups wait for their senders, neighbours on a ring share a group, so that most groups hear few others.
        """
        size = -(-len(self.agents) // count)
        return [self.agents[n * size : (n + 1) * size] if senders else self.agents[n::count] for n in range(count)]

    def hears(self, parts):
        """Return for each group, given with its agents, those with an agent that has a friend in it."""
        homes = {agent: name for name, part in parts.items() for agent in part}
        found = {name: set() for name in parts}
        for agent, friend in self.edges():
            found[homes[friend]].add(homes[agent])
        return found

    def begin(self, agent):
        """Return an agent's state before the first step."""
        return [0 if agent in self.first else -1, "0"]

    def hear(self, agent, step, state, heard):
        """Return an agent's next state; `heard` are (from_id, word) in order."""
        since = step if state[0] < 0 and heard else state[0]
        text = f"{agent}/{step}/{state[1]}/{heard}"
        return [since, blake2b(text.encode(), digest_size=8).hexdigest()]

    def tell(self, agent, step, state):
        """Return the words of an agent in a step: (to_id, word, step in which it is read)."""
        found = []
        for n, friend in enumerate(self.friends[agent] if state[0] >= 0 else ()):
            word = blake2b(f"{state[1]}/{n}".encode(), digest_size=4).hexdigest()
            if int(word[:2], 16) < self.chance:
                late = int(word[2], 16) == 0
                to = NOBODY if int(word[2:4], 16) == 255 else friend
                found.append((to, word + self.pad * "-", step + 1 + 2 * late))
        return found


def blocks(word):
    """Tell whether the rule blocks a word."""
    return int(word[4:6], 16) < BLOCKED


def college_edges(path):
    """Return who wrote to whom in CollegeMsg."""
    with gzip.open(path, "rt") as lines:
        return {tuple(map(int, line.split()[:2])) for line in lines}


def small_world(agents, friends=4, seed=7):
    """Return the edges of a ring in which each agent knows the next ones, and one in eight somebody far away."""
    chance = random.Random(seed)
    near = {(n, (n + k) % agents) for n in range(agents) for k in range(1, friends + 1)}
    return near | {(n, chance.randrange(agents)) for n in range(0, agents, 8)}


def sequential(rumour, rule=False):
    """Run a rumour in one loop that uses nothing of ours; return the states and the digest of each step."""
    states, boxes, digests = {agent: rumour.begin(agent) for agent in rumour.agents}, {}, []
    for step in range(rumour.steps):
        total = 0
        for agent in rumour.agents:
            heard = [(row[1], row[3]) for row in sorted(boxes.pop((step, agent), []))]  # by step sent, sender, n
            states[agent] = rumour.hear(agent, step, states[agent], heard)
            for n, (to, word, read) in enumerate(rumour.tell(agent, step, states[agent])):
                fate = b"blocked" if rule and blocks(word) else b"undeliverable" if to == NOBODY else b"delivered"
                if fate == b"delivered":
                    boxes.setdefault((read, to), []).append((step, agent, n, word))
                payload = json.dumps({"word": word}, separators=(",", ":")).encode()
                row = pack("<qqcqqcq", step, read, b"i", agent, n, b"i", to)
                for text in (b"agent-chat", fate):
                    row += pack("<I", len(text)) + text
                row += b"r" + pack("<I", 5) + b"words" if fate == b"blocked" else b"n"
                row += pack("<I", 0) + pack("<I", len(payload)) + payload
                total += int.from_bytes(blake2b(row, digest_size=32).digest(), "little")
        digests.append((total % 2**256).to_bytes(32, "little"))
    return states, digests


def live_step(rumour, step):
    """Run one step of a rumour for the agents of a group, also for those that came with it; return their states."""
    before, states = json.loads(step.state) if step.state else {}, {}
    for arrival in step.arrivals:
        brought = json.loads(arrival.state) if arrival.state else {}
        before |= {str(agent): brought.get(str(agent)) for agent in arrival.agents}
    for agent, inbox in step.by_agent():
        state = before.get(str(agent)) or rumour.begin(agent)
        heard = [(message.from_id, message.payload["word"]) for message in inbox]
        states[agent] = state = rumour.hear(agent, step.number, state, heard)
        for to, word, read in rumour.tell(agent, step.number, state):
            step.send(agent, to, {"word": word}, deliver_at=read)
    step.state = json.dumps(states).encode()
    return states
