"""The interceptor: a verdict for every message, by rules in order; the first block wins."""

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Mapping
from operator import index

import numpy as np

from ray_messaging.channels import AGENT_CHAT, AgentId, check_id
from ray_messaging.errors import RuleError
from ray_messaging.frames import Batch, decode
from ray_messaging.ids import Ids
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Rule, failure
from ray_messaging.interception.verdicts import FOREIGN, Blocked, Verdicts, encode_verdicts
from ray_messaging.lines import Lines, encode_payload

logger = logging.getLogger(__name__)

# How many senders' last answers are kept for a batch that is asked again: a sender has one batch under way.
_REMEMBERED = 20_000
_ANY_SIZE = 2**40


class Interceptor:
    """Judge batches by ordered rules; a plain object, so that its hot code is not wrapped by Ray."""

    def __init__(self, exp_id: str, rules: Iterable[Rule] = (), *, epoch: int = FOREIGN) -> None:
        self.exp_id = exp_id
        self.epoch = epoch
        self.rules: list[Rule] = []
        for rule in rules:
            self.insert(len(self.rules), rule)
        self._answers: OrderedDict[str, tuple[tuple[int, ...], bytes]] = OrderedDict()
        self.judged = 0
        self.blocked = 0

    def insert(self, index: int, rule: object) -> None:
        """Insert a rule; raise RuleError where it is none, or its name is taken."""
        if not isinstance(rule, Rule):
            raise RuleError(f"{rule!r} is no rule: derive it from ray_messaging.rules.Rule", rule=repr(rule))
        if any(rule.name == other.name for other in self.rules):
            raise RuleError(f"there is a rule named {rule.name!r} already: give this one another name", rule=rule.name)
        self.rules.insert(index, rule)

    @property
    def wants_payload(self) -> bool:
        """Tell whether a rule reads payloads."""
        return any(rule.needs_payload for rule in self.rules)

    @property
    def black_list(self) -> BlackList:
        """Return the first black list; an empty one is put before all other rules where there is none."""
        for rule in self.rules:
            if isinstance(rule, BlackList):
                return rule
        self.insert(0, BlackList())
        return self.black_list

    def forward(self, from_id: AgentId | None, to_id: AgentId | None, message: object) -> bool:
        """Tell whether one message may pass: the call of AgentSociety's interceptor."""
        line = encode_payload(message if isinstance(message, dict) else {"content": message}, _ANY_SIZE)
        batch = Batch(
            sender="forward",
            epoch=0,
            first=self.judged,
            from_ids=Ids.of([None if from_id is None else check_id(from_id)]),
            to_ids=Ids.of([None if to_id is None else check_id(to_id)]),
            topics=(AGENT_CHAT,),
            lines=Lines.of([line]),
        )
        return not self.judge(batch)

    def answer(self, request: bytes) -> bytes:
        """Answer a request for verdicts (a frame); the same batch asked again is answered as before."""
        batch = decode(request)
        if self.wants_payload and batch.lines is None:
            return encode_verdicts(Verdicts(self.epoch, judged=False, wants_payload=True))
        identity = (self.epoch, batch.epoch, batch.first, len(batch))
        known = self._answers.get(batch.sender)
        if known is not None and known[0] == identity:
            return known[1]
        answer = self._encode(batch)
        self._answers[batch.sender] = (identity, answer)
        self._answers.move_to_end(batch.sender)
        if len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        return answer

    def _encode(self, batch: Batch) -> bytes:
        try:
            return encode_verdicts(
                Verdicts(self.epoch, wants_payload=self.wants_payload, blocked=_grouped(self.judge(batch)))
            )
        except Exception as error:
            # A rule can answer what passes every check and still cannot be sent; nobody must wait for it for ever.
            logger.exception("a batch of %d messages could not be judged", len(batch))
            blocked = _grouped(dict.fromkeys(range(len(batch)), ("interceptor", ascii(failure(error)))))
            return encode_verdicts(Verdicts(self.epoch, wants_payload=self.wants_payload, blocked=blocked))

    def judge(self, batch: Batch) -> dict[int, tuple[str, str]]:
        """Return the rows that are blocked, with rule and reason; later rules see only what passed the earlier."""
        blocked: dict[int, tuple[str, str]] = {}
        left: np.ndarray | None = None
        rest = batch
        for rule in self.rules:
            found = self._apply(rule, rest)
            if found:
                rows = {row if left is None else int(left[row]): reason for row, reason in found.items()}
                blocked |= {row: (rule.name, reason) for row, reason in rows.items()}
                left = np.setdiff1d(np.arange(len(batch)), np.fromiter(blocked, np.intp, len(blocked)))
                rest = batch.take(left)
            if not len(rest):
                break
        self.judged += len(batch)
        self.blocked += len(blocked)
        return blocked

    def _apply(self, rule: Rule, batch: Batch) -> Mapping[int, str]:
        try:
            found = rule.check_batch(batch, self.exp_id)
            if not isinstance(found, Mapping) or not all(
                0 <= index(row) < len(batch) and isinstance(reason, str) for row, reason in found.items()
            ):
                raise RuleError(f"rule {rule.name!r} answered {found!r} for {len(batch)} messages", rule=rule.name)  # noqa: TRY301 - one way out
        except Exception as error:
            logger.exception("rule %r failed on a batch of %d messages", rule.name, len(batch))
            if rule.on_error == "allow":
                return {}
            return dict.fromkeys(range(len(batch)), failure(error))
        return found


def _grouped(blocked: Mapping[int, tuple[str, str]]) -> tuple[Blocked, ...]:
    groups: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for row, why in blocked.items():
        groups[why].append(row)
    # A reason may quote what cannot be encoded.
    return tuple(
        Blocked(rule, reason.encode(errors="replace").decode(), np.array(rows, "<u4").tobytes())
        for (rule, reason), rows in groups.items()
    )
