"""The class of `messaging.rules`, by which a driver lists and changes the rules of an experiment."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray_messaging.cluster.handles.connection import ExperimentConnection
from ray_messaging.cluster.ray_calls import put
from ray_messaging.cluster.unpicklable import sent
from ray_messaging.common.notebook import html_table

if TYPE_CHECKING:
    from ray_messaging.eventlog.folder_records import RuleChange
    from ray_messaging.interception.rules.rule import Rule


class ExperimentRules:
    """The rules of an experiment, in the order in which they judge messages.

    A change applies at once, even in the middle of a step, to every send that begins after the call has returned. A
    change with `at_step` applies to all messages that are sent in that step or later, even if processes die meanwhile.
    """

    def __init__(self, connection: ExperimentConnection) -> None:
        self._connection = connection
        self._interceptor = connection.interceptor

    def __repr__(self) -> str:
        return f"ExperimentRules({', '.join(rule['name'] for rule in self.list())})"

    def _repr_html_(self) -> str:
        found = self.list()
        columns = {
            key: [rule.get(key) for rule in found] for key in dict.fromkeys(key for rule in found for key in rule)
        }
        return html_table(repr(self), columns, len(found))

    def list(self) -> Sequence[dict[str, Any]]:
        """Return a description of each rule: its name, kind and settings, its failures and its last error."""
        found: Sequence[dict[str, Any]] = self._connection.ask(self._interceptor.rules.remote())
        return found

    def insert(self, rule: "Rule", index: int | None = None, *, at_step: int | None = None) -> None:
        """Insert a rule before the rule at `index` (None: at the end).

        Raises: RuleError for a rule or an index that cannot be used; ConfigError if step `at_step` has begun, or the
        experiment has no steps.
        """
        self._connection.ask(self._interceptor.insert_rule.remote(sent("the rule", rule, put), index, at_step=at_step))

    def replace(self, which: int | str, rule: "Rule", *, at_step: int | None = None) -> None:
        """Replace a rule, given by its index or name. Raises the same errors as `insert`."""
        self._connection.ask(self._interceptor.replace_rule.remote(which, sent("the rule", rule, put), at_step=at_step))

    def pop(self, which: int | str = -1, *, at_step: int | None = None) -> dict[str, Any]:
        """Remove a rule, given by its index or name; return its description. Raises the same errors as `insert`."""
        found: dict[str, Any] = self._connection.ask(self._interceptor.pop_rule.remote(which, at_step=at_step))
        return found

    def changes(self) -> "Sequence[RuleChange]":
        """Return the changes of the rules since this start of the experiment, in the order of the calls."""
        found: Sequence[RuleChange] = self._connection.ask(self._interceptor.rule_changes.remote())
        return found
