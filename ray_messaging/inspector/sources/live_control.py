"""Control of a running experiment from the inspector's pages."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from threading import Lock
from typing import Any

import numpy as np

from ray_messaging.addressing.channels import USER_CHAT, AgentId
from ray_messaging.cluster.handles.connection import connect
from ray_messaging.cluster.handles.user_messager import UserMessager
from ray_messaging.cluster.messaging import Messaging
from ray_messaging.errors import ConfigError, InvalidPayload
from ray_messaging.eventlog.event_log import EventLog
from ray_messaging.eventlog.reading.event_rows import dicts_of
from ray_messaging.inspector.page_values import Preview, cut, name
from ray_messaging.inspector.sources.log_rows import agent_id, row_of
from ray_messaging.interception.rules import RateLimit, Rule
from ray_messaging.interception.rules.rule import Verdict
from ray_messaging.model.batch import Batch, topic_column
from ray_messaging.model.columns import IdColumn, PayloadColumn
from ray_messaging.model.fates import BLOCKED, FATES, SENT

ASK_S = 20.0
_LONGEST = 100_000  # a text or rule that a page sends may have at most this many characters
PERIOD_S = 60.0  # the preview of a rule judges the messages of the last PERIOD_S seconds
MOST = 5_000  # the preview judges at most this many messages
WIDTH = 10_000  # messages with more characters of payload are not judged
_EXAMPLES = 8

ReadRule = Callable[[str], Rule]


class LiveControl:
    """What a reader of the pages can do with a running experiment: steer it, and send messages as its user.

    Each call that returns a str tells the reader what was done.

    Args: `read_rule` builds a rule from the text that a reader has typed. `examples` show how rules are written.
    """

    def __init__(self, messaging: Messaging, read_rule: ReadRule, examples: Sequence[str]) -> None:
        self.examples = examples
        self._messaging = messaging
        self._read_rule = read_rule
        self._connection = connect(messaging.exp_id)
        self._opening = Lock()

    # -- steps ----------------------------------------------------------------------------------------------------

    def pause(self) -> str:
        """Pause the steps: no further step begins."""
        return f"paused after step {self._messaging.steps.pause():,}"

    def resume(self) -> str:
        """Resume the steps after a pause."""
        self._messaging.steps.resume()
        return "the steps go on"

    def advance(self, steps: int) -> str:
        """Run some steps, and then pause again."""
        return f"runs up to step {self._messaging.steps.advance(steps):,}"

    # -- messages of the user -------------------------------------------------------------------------------------

    @cached_property
    def _opened(self) -> UserMessager:
        return UserMessager(self._connection)

    @property
    def _user(self) -> UserMessager:
        with self._opening:
            return self._opened

    def write(self, to_id: str, text: str) -> str:
        """Send a message to an agent as the user; return its fate."""
        agent, payload = _recipient(to_id), payload_of(text)
        receipt = self._user.run(self._user.messager.send(None, agent, payload, subtopic=USER_CHAT))
        return f"{receipt.fate}{f': {cut(receipt.reason, 300)}' if receipt.reason else ''}"

    def ask(self, to_id: str, text: str) -> str:
        """Ask an agent as the user; return its answer. Raises NoAnswer if there is none within ASK_S seconds."""
        agent, payload = _recipient(to_id), payload_of(text)
        ask = self._user.messager.ask
        answer = self._user.run(ask(None, agent, payload, subtopic=USER_CHAT, timeout=ASK_S))
        return f"{name(answer.from_id)} answers: {cut(answer.data.decode(errors='replace'))}"

    # -- rules ----------------------------------------------------------------------------------------------------

    def _rule(self, spec: str) -> Rule:
        if len(spec) > _LONGEST:
            raise ConfigError(
                f"a rule of {len(spec):,} characters is too long for a page, which takes at most {_LONGEST:,}: use "
                "messaging.rules in Python"
            )
        return self._read_rule(spec.strip())

    def preview(self, spec: str) -> Preview:
        """Return what a rule would have done with the messages of the last minute.

        Raises ConfigError if the rule is invalid.
        """
        return preview(self._messaging.log, self._messaging.exp_id, self._rule(spec))

    def insert_rule(self, spec: str, index: int | None, at_step: int | None) -> str:
        """Insert a rule. If the name of the rule is taken, a number is appended to it."""
        rule = self._rule(spec)
        taken = {found["name"] for found in self._messaging.rules.list()}
        free = (f"{rule.name}_{number}" if number > 1 else rule.name for number in range(1, len(taken) + 2))
        rule.name = next(each for each in free if each not in taken)
        self._messaging.rules.insert(rule, index, at_step=at_step)
        return f"rule {name(rule.name)} is in force{_from(at_step)}"

    def replace_rule(self, which: str, spec: str, at_step: int | None) -> str:
        """Replace a rule. The new rule gets the same name."""
        rule = self._rule(spec)
        rule.name = which
        self._messaging.rules.replace(which, rule, at_step=at_step)
        return f"rule {name(which)} is replaced{_from(at_step)}"

    def pop_rule(self, which: str, at_step: int | None) -> str:
        """Remove a rule."""
        self._messaging.rules.pop(which, at_step=at_step)
        return f"rule {name(which)} is removed{_from(at_step)}"

    # -- dead letters ---------------------------------------------------------------------------------------------

    def requeue(self, letter: str) -> str:
        """Put the messages of a dead letter back into their mailboxes; raise ConfigError if they cannot go back."""
        done = self._messaging.dead_letters.requeue(letter)
        if done.left:
            raise ConfigError(
                "; ".join(f"dead letter {each} was not requeued: {cut(why, 300)}" for each, why in done.left.items())
            )
        return f"{done.messages:,} messages were sent again"

    def close(self) -> None:
        """Disconnect the messager that writes as the user."""
        with self._opening:
            if "_opened" in self.__dict__:
                self._opened.close()


def _from(at_step: int | None) -> str:
    return "" if at_step is None else f" from step {at_step:,}"


def payload_of(text: str) -> dict[str, Any]:
    """Return the payload for a text that a reader has typed: a JSON object, or a dict with the text as `content`.

    Raises: InvalidPayload if the text begins like JSON but is not valid JSON; ConfigError if it is too long.
    """
    if len(text) > _LONGEST:
        raise ConfigError(f"a text of {len(text):,} characters is too long: write at most {_LONGEST:,}")
    if text.lstrip().startswith("{"):
        try:
            return dict(json.loads(text))
        except ValueError as error:
            raise InvalidPayload(
                f"this text begins like JSON, but is not valid JSON ({error}): correct it, or write a plain text"
            ) from error
    return {"content": text}


def _recipient(text: str) -> AgentId:
    found = agent_id(text)
    if found is None:
        raise ConfigError(f"the recipient must be an agent, not {text.strip()!r}: write the id of an agent")
    return found


def preview(log: EventLog, exp_id: str, rule: Rule) -> Preview:
    """Return what a new rule would do with messages of the last minute that passed all rules, at most the last MOST.

    The rule judges neither broadcasts to an audience nor messages with more than WIDTH characters of payload.

    Raise LogError if the log is damaged.
    """
    since = time.time() - PERIOD_S
    table = log.recent(limit=MOST, width=WIDTH + 1, fate=SENT, since=since)
    rows = [found for found in dicts_of(table) if found["audience"] is None]
    whole = [found for found in rows if len(found["payload"]) <= WIDTH]
    found = [*judged(whole, exp_id, rule)]
    times = [row["sent_at"] for row in whole]
    blocked = [(row, verdict) for row, verdict in found if verdict.blocked]
    return Preview(
        name(rule.name),
        len(whole),
        len(blocked),
        len(found) - len(blocked),
        max(times, default=0.0) - min(times, default=0.0),
        len(rows) - len(whole),
        [
            row_of({**row, "rule": rule.name, "reason": verdict.reason, "fate": FATES[BLOCKED]})
            for row, verdict in blocked[:_EXAMPLES]
        ],
    )


def judged(rows: Iterable[Mapping[str, Any]], exp_id: str, rule: Rule) -> Iterable[tuple[Mapping[str, Any], Verdict]]:
    """Yield the rows that a rule would block, rewrite or label, with the rule's verdicts.

    A RateLimit does not use the current time, but the times at which the messages in the log were sent.
    """
    if isinstance(rule, RateLimit):
        moment = [0.0]
        rule = RateLimit(rule.per_second, rule.per_round, name=rule.name, clock=lambda: moment[0])
    else:
        moment = []
    in_time = sorted(rows, key=lambda row: row["sent_at"])
    for second, group in groupby(in_time, key=lambda row: int(row["sent_at"])):
        moment[:] = [float(second)]
        part = [*group]
        verdicts = rule.check_batch(batch_of(part), exp_id)
        yield from ((part[place], verdict) for place, verdict in sorted(verdicts.items()))


def batch_of(rows: list[Mapping[str, Any]]) -> Batch:
    """Return rows of the log as a batch that a rule can judge."""
    topics = dict.fromkeys(row["subtopic"] or row["channel"] for row in rows)
    numbers = {topic: place for place, topic in enumerate(topics)}
    return Batch(
        sender="preview",
        epoch=0,
        first=0,
        rows=len(rows),
        from_ids=IdColumn.of([row["from_id"] for row in rows]),
        to_ids=IdColumn.of([row["to_id"] for row in rows]),
        topics=(*topics,),
        topic=topic_column([numbers[row["subtopic"] or row["channel"]] for row in rows], len(numbers)),
        sent_at=np.array([row["sent_at"] for row in rows]),
        lines=PayloadColumn.of([row["payload"].encode() for row in rows], raw=True),
    )
