"""The rules of one interceptor, in order."""

from collections.abc import Iterable, Iterator

from ray_messaging.addressing.channels import NAME_LENGTH
from ray_messaging.errors import RuleError
from ray_messaging.interception.rules.black_list import BlackList
from ray_messaging.interception.rules.rule import Context, Rule


class RuleSet:
    """Hold rules in order; each has a name of its own."""

    def __init__(self, rules: Iterable[Rule] = (), context: Context | None = None) -> None:
        self._rules: tuple[Rule, ...] = ()
        self._context = context
        self.wants_payload = False
        for rule in rules:
            self.insert(rule)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    @property
    def now(self) -> tuple[Rule, ...]:
        """Return the rules as they are now; later changes make another tuple."""
        return self._rules

    @property
    def names(self) -> list[str]:
        """Return the names, in order."""
        return [rule.name for rule in self._rules]

    def find(self, which: int | str) -> int:
        """Return the place of a rule, given by place or name; raise RuleError naming those that are there."""
        if isinstance(which, str) and which in self.names:
            return self.names.index(which)
        if isinstance(which, int) and not isinstance(which, bool) and -len(self) <= which < len(self):
            return which % len(self)
        raise RuleError(
            f"there is no rule {which!r}: the rules are " + (", ".join(map(repr, self.names)) or "none"),
            rule=str(which),
        )

    def get(self, which: int | str) -> Rule:
        """Return a rule, given by place or name; raise RuleError."""
        return self._rules[self.find(which)]

    def insert(self, rule: object, index: int | None = None) -> Rule:
        """Put a rule before the one at `index` (None: at the end); raise RuleError where that cannot be."""
        return self._put(rule, [*self._rules], len(self) if index is None else _place(index))

    def replace(self, which: int | str, rule: object) -> Rule:
        """Put a rule in the place of another one."""
        place = self.find(which)
        return self._put(rule, [*self._rules[:place], *self._rules[place + 1 :]], place)

    def pop(self, which: int | str = -1) -> Rule:
        """Take a rule out and return it; messages may wait for it still, so it keeps its context."""
        place = self.find(which)
        rule = self._rules[place]
        self._set([*self._rules[:place], *self._rules[place + 1 :]])
        return rule

    def _put(self, rule: object, others: list[Rule], place: int) -> Rule:
        if not isinstance(rule, Rule):
            raise RuleError(f"{rule!r} is no rule: derive it from ray_messaging.rules.Rule", rule=repr(rule))
        if not _can_name(rule.name):
            raise RuleError(
                f"{rule!r} has the name {rule.name!r}, which cannot be used, as receipts and the log show it: "
                f"give it a printable one of at most {NAME_LENGTH} characters that does not begin with a colon",
                rule=repr(rule),
            )
        if any(rule.name == other.name for other in others):
            raise RuleError(f"there is a rule named {rule.name!r} already: give this one another name", rule=rule.name)
        others.insert(place, rule)
        rule.context = self._context
        self._set(others)
        return rule

    def _set(self, rules: list[Rule]) -> None:
        self._rules = tuple(rules)
        self.wants_payload = any(rule.needs_payload for rule in rules)

    @property
    def black_list(self) -> BlackList:
        """Return the first black list; an empty one is put before all other rules where there is none."""
        for rule in self._rules:
            if isinstance(rule, BlackList):
                return rule
        made = BlackList()
        self.insert(made, 0)
        return made


def _can_name(name: object) -> bool:
    return isinstance(name, str) and 0 < len(name) <= NAME_LENGTH and name.isprintable() and name[0] != ":"


def _place(index: object) -> int:
    if isinstance(index, int) and not isinstance(index, bool):
        return index
    raise RuleError(f"{index!r} is no place among rules: write an int, or None for the end", rule="")
