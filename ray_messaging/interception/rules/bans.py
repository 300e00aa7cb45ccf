"""Rules that ban senders, or pairs of agents, after repeated violations."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ray_messaging.addressing.channels import AgentId
from ray_messaging.common.awaitables import RAISED
from ray_messaging.errors import RuleError
from ray_messaging.interception.interceptor.rule_tables import Table
from ray_messaging.interception.rules.checks import check_count
from ray_messaging.interception.rules.pairs import Pair, PairIndex, PairTable, blocks, name_of
from ray_messaging.interception.rules.rule import ALLOW, UNLIMITED, PairCheck, Rule, SlowRule, Verdict, checked
from ray_messaging.message import Message
from ray_messaging.model.batch import Batch

_FAILED = "the rule failed: "  # the beginning of each text that `rule.failure` returns
_CHECK = "check"  # the first item of the keys in `state` that belong to the check; only these keys have three items


class Ban(Rule):
    """Block the messages that the rule `check` blocks, and all messages of senders or pairs with `after` violations.

    A violation is a message that `check` blocks. Violations are counted for each key. Subclasses decide whether a key
    is a sender, or a pair of sender and receiver. A key with `after` violations is banned: its further messages are
    blocked, and `check` does not get them. Only a `check` without a state may still get those in the batch in which the
    ban begins. Violations by the user are blocked, but not counted.

    If `check` raises an error on a message, the message is no violation. It is still blocked, unless `on_error` of
    `check` or of this rule is "allow".

    `state` has the number of violations of each key, up to `after`, and the state of `check`.
    """

    state: Table[Any]
    _of_pairs = False  # whether a key is a pair of sender and receiver

    def __init__(self, check: Rule, after: int, name: str) -> None:
        if isinstance(check, SlowRule) or not isinstance(check, Rule):
            what = "is slow, and a ban cannot wait for it" if isinstance(check, SlowRule) else "is no rule"
            raise RuleError(f"check={check!r} {what}: pass a rule that judges at once, such as Pattern", rule=name)
        self.name = name
        self.inner = check
        self.after = check_count("after", after, 1, name)
        self.needs_payload = check.needs_payload
        self.judges_broadcasts = check.judges_broadcasts
        self.state = Table()
        self._mirror()
        self.restored()

    def __getstate__(self) -> dict[str, Any]:
        # The index is left out, because it is quickly built again. It is so large that Ray would store it apart from
        # the pickle, where a restarted actor may not find it.
        return {key: value for key, value in self.__dict__.items() if key != "_index"}

    def __setstate__(self, kept: dict[str, Any]) -> None:
        self.__dict__.update(kept)
        self._build_index()

    def _build_index(self) -> None:
        self._index = PairIndex(map(_pair, self._banned()))

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - an id, or a pair
        raise NotImplementedError

    def _banned(self) -> list[Any]:
        return [key for key, count in self.state.items() if not _of_check(key) and count >= self.after]

    def check_batch(self, batch: Batch, exp_id: str) -> Mapping[int, Verdict]:
        """Return the verdicts of the rule `check`, and verdicts that block the rows whose sender or pair is banned."""
        with self._in_context():
            if type(self.inner).check_batch is Rule.check_batch:
                return self._one_by_one(batch, exp_id)
            if self.inner.state is None:
                return self._at_once(batch, exp_id)
            return self._in_parts(batch, exp_id)

    @contextmanager
    def _in_context(self) -> Iterator[None]:
        """Set `context` of the rule `check` for one call, and copy the changed state of `check` afterwards."""
        # The check has a context only during a call, because a removed rule must be pickled without a context.
        self.inner.context = self.context
        try:
            yield
        finally:
            self.inner.context = None
            self._mirror()

    def _one_by_one(self, batch: Batch, exp_id: str) -> dict[int, Verdict]:
        found: dict[int, Verdict] = {}
        for row in range(len(batch)):
            key = self._key_of(batch, row)
            if self._is_banned(key):
                found |= blocks([row], [self._reason(key)])
                continue
            try:
                verdict = checked(self.inner.check(Message(exp_id, batch, row)))
            # The check may be any code. If it fails, `on_error` of the check and of this rule decide.
            except RAISED as error:
                verdict = self._check_failed(error)
            else:
                if verdict.blocked:
                    self._count(key)
            if verdict is not ALLOW:
                found[row] = verdict
        return found

    def _in_parts(self, batch: Batch, exp_id: str) -> dict[int, Verdict]:
        """Return the verdicts on a batch. The rule `check` gets the batch in parts, because `check` may keep counts.

        After the message that begins a ban, `check` must not count further messages of the banned sender or pair. So
        after a message that may begin a ban, no message of its sender or pair is in the same part. Each sender's rows
        stay in order.
        """
        found: dict[int, Verdict] = {}
        for rows in self._before_bans(batch):
            verdicts = self._at_once(batch if len(rows) == len(batch) else batch.take(rows), exp_id)
            found |= {int(rows[row]): verdict for row, verdict in verdicts.items()}
        return found

    def _before_bans(self, batch: Batch) -> Iterator[NDArray[np.intp]]:
        """Yield the batch's rows in parts, so that a ban takes effect between two parts.

        Within a part, only the last row of a sender or pair can be the row that begins its ban.
        """
        waiting: dict[AgentId | None, list[int]] = {}
        for row, sender in enumerate(batch.from_ids.tolist()):
            waiting.setdefault(sender, []).append(row)
        # Each sender's rows are in reversed order, so that `pop` returns the sender's next row.
        left = [rows[::-1] for rows in waiting.values()]
        while left:
            part: list[int] = []
            room: dict[Any, int] = {}  # for each key, how many more of its rows may be in this part
            for rows in left:
                while rows:
                    key = self._key_of(batch, rows[-1])
                    if key not in room:
                        count = self.after if key is None else self.state.get(key, 0)
                        room[key] = self.after - count if count < self.after else UNLIMITED
                    if room[key] == 0:
                        break
                    room[key] -= 1
                    part.append(rows.pop())
            yield np.array(sorted(part), np.intp)
            left = [rows for rows in left if rows]

    def _at_once(self, batch: Batch, exp_id: str) -> dict[int, Verdict]:
        """Return the verdicts of the rule `check` on a batch, and blocks for the rows of banned senders or pairs.

        `check` judges, in one call, all rows that are not banned yet. If a row begins a ban, the later rows of the same
        sender or pair are blocked, too.
        """
        found = self._banned_rows(batch)
        rest, rows = batch, np.arange(len(batch))
        if found:
            rows = np.setdiff1d(rows, np.fromiter(found, np.intp, len(found)))
            rest = batch.take(rows)
        if not len(rest):
            return found
        try:
            verdicts = {
                int(rows[row]): checked(verdict) for row, verdict in self.inner.check_batch(rest, exp_id).items()
            }
        # The check may be any code. If it fails, `on_error` of the check and of this rule decide.
        except RAISED as error:
            verdict = self._check_failed(error, len(rest))
            return found if verdict is ALLOW else dict.fromkeys(rows.tolist(), verdict) | found
        begins: dict[Any, int] = {}
        for row in sorted(row for row, verdict in verdicts.items() if _is_violation(verdict)):
            key = self._key_of(batch, row)
            if not self._is_banned(key) and self._count(key):
                begins[key] = row
        return found | verdicts | (self._banned_rows(batch, begins) if begins else {})

    def _banned_rows(self, batch: Batch, begins: Mapping[Any, int] | None = None) -> dict[int, Verdict]:
        """Return verdicts that block the rows whose sender, or pair of sender and receiver, is banned.

        If `begins` is given, it has the row that began each ban, and only rows after that row are blocked.
        """
        rows: dict[int, str] = {}
        for row in self._index.candidates(batch.from_ids, batch.to_ids):
            key = self._key_of(batch, row)
            if self._is_banned(key) if begins is None else row > begins.get(key, row):
                rows[row] = self._reason(key)
        return blocks(rows, rows.values())

    def _key_of(self, batch: Batch, row: int) -> Any:  # noqa: ANN401 - an id, or a pair
        from_id = batch.from_ids[row]
        return (from_id, batch.to_ids[row]) if self._of_pairs and from_id is not None else from_id

    def _is_banned(self, key: Any) -> bool:  # noqa: ANN401 - an id, or a pair
        return key is not None and bool(self.state.get(key, 0) >= self.after)

    def _count(self, key: Any) -> bool:  # noqa: ANN401 - an id, or a pair
        """Count a violation; return whether it begins a ban.

        Args: `key` is the sender, or the pair of sender and receiver, that may be banned.
        """
        if key is None:
            return False
        count = self.state[key] = self.state.get(key, 0) + 1
        if count < self.after:
            return False
        if not self._index.add(_pair(key)):
            self._build_index()
        return True

    def _check_failed(self, error: BaseException, messages: int = 1) -> Verdict:
        verdict = self.count_failure(error, messages)
        return ALLOW if self.inner.on_error == "allow" else verdict

    def _mirror(self) -> None:
        """Copy what has changed in the state of the rule `check` into this rule's state, which alone is saved."""
        changes = None if self.inner.state is None else self.inner.state.changes()
        if changes is None:
            return
        if changes.cleared:
            for key in [key for key in self.state if _of_check(key)]:
                del self.state[key]
        for field in changes.gone:
            self.state.pop((_CHECK, field.decode(), ""), None)
        for field, value in changes.put.items():
            self.state[_CHECK, field.decode(), ""] = value.decode()

    @property
    def counts_blocked(self) -> bool:
        """Return whether verdicts of the rule `check` depend on how many of a sender's messages were blocked before."""
        return self.inner.counts_blocked

    def room(self, senders: Sequence[AgentId | None]) -> Sequence[int]:
        """Return, for each sender, how many more of its messages must be blocked before `check` may judge otherwise."""
        with self._in_context():
            return self.inner.room(senders)

    def new_round(self) -> None:
        """Begin a new round of the rule `check`, which finds violations. Bans and counts of violations stay."""
        with self._in_context():
            self.inner.new_round()

    async def close(self) -> None:
        """Close the rule `check`, which finds violations."""
        await self.inner.close()

    def restored(self) -> None:
        """Rebuild the index of bans, and the state of the rule `check`, from the loaded `state`."""
        self._build_index()
        if self.inner.state is not None:
            kept = {key[1].encode(): value.encode() for key, value in self.state.items() if _of_check(key)}
            self.inner.state.load(kept)
            self.inner.restored()

    def describe(self) -> dict[str, Any]:
        """Return the rule's name and kind, and under `check` the description of the rule that finds violations.

        `after` is how many violations lead to a ban, and `banned` the number of bans.
        """
        return {
            **super().describe(),
            "check": self.inner.describe(),
            "after": self.after,
            "banned": len(self._banned()),
        }


def _pair(key: Any) -> Pair:  # noqa: ANN401 - an id, or a pair
    return key if isinstance(key, tuple) else (key, None)


def _is_violation(verdict: Verdict) -> bool:
    return verdict.blocked and not verdict.reason.startswith(_FAILED)


def _of_check(key: object) -> bool:
    return isinstance(key, tuple) and len(cast("tuple[object, ...]", key)) == 3


class EdgeBan(Ban):
    """Block all messages between a sender and a receiver after repeated violations.

    A message that the rule `check` blocks is a violation of its sender and receiver. After the first `after`
    violations, all further messages from that sender to that receiver are blocked. All plain channels (channels that
    belong to no agent) count as one receiver. The user is never banned. A message on which the check raises an error is
    no violation. The numbers of violations are in `state`, so they survive the death of the rule's process.

    A sender's broadcasts do not reach the agents to whom the sender may no longer write. A check with
    judges_broadcasts="message" judges a broadcast as one message. If it blocks the broadcast, this counts like a
    violation by a message to a plain channel, and not as a violation by messages to the hearers.

    Args:
        check: the rule that finds violations. It cannot be a `SlowRule`.
        after: violations before the ban.
        name: the rule's name.

    Raises: RuleError if an argument is not valid.
    """

    _of_pairs = True

    def __init__(self, check: Rule, after: int = 3, *, name: str = "edge_ban") -> None:
        super().__init__(check, after, name)

    def pair_check(self) -> PairCheck | None:
        """Return a check that blocks broadcasts to those hearers to whom the sender may not write any more.

        Return None if the rule gets a broadcast as one message for each hearer: it then blocks these messages itself.
        """
        if self.judges_broadcasts == "pair":
            return None
        heard = (pair for pair in self._banned() if pair[1] is not None)
        return PairCheck(PairTable(heard).has, f"this pair is banned after {self.after} violation(s)")

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - as in Ban
        receiver = "plain channels" if key[1] is None else name_of(key[1])
        return f"{name_of(key[0])} may no longer write to {receiver}: it is banned after {self.after} violation(s)"


class SenderBan(Ban):
    """Block all messages of a sender after repeated violations.

    A message that the rule `check` blocks is a violation of its sender. After the first `after` violations, all further
    messages of that sender are blocked. The user is never banned. A message on which the check raises an error is no
    violation. The numbers of violations are in `state`, so they survive the death of the rule's process.

    Args:
        check: the rule that finds violations. It cannot be a `SlowRule`.
        after: violations before the ban.
        name: the rule's name.

    Raises: RuleError if an argument is not valid.
    """

    def __init__(self, check: Rule, after: int = 3, *, name: str = "sender_ban") -> None:
        super().__init__(check, after, name)

    def _reason(self, key: Any) -> str:  # noqa: ANN401 - as in Ban
        return f"{name_of(key)} may no longer write to anybody: it is banned after {self.after} violation(s)"
