"""The rule changes of a run, in the log's folder."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ray_messaging.errors import LogError

if TYPE_CHECKING:  # it brings pyarrow, which an interceptor does not need
    from ray_messaging.eventlog.folder import Folder

_NAME = "_rule_changes.json"


class RuleChange(msgspec.Struct, frozen=True):
    """One change of an experiment's rules while it ran.

    `change` is insert, replace, remove or the call that changed a list of pairs; `rule` is the rule's description.
    `step` is the first step that it applies to (None: there are no steps). It is `exact` if it applies to the whole
    step; other changes take effect in the middle of a step, and two such runs need not be equal.
    """

    at: float  # unix s
    change: str
    rule: dict[str, Any]
    step: int | None = None
    exact: bool = False


def read_rule_changes(folder: "Folder") -> list[RuleChange]:
    """Return the rule changes of the folder's run, in order; raise LogError."""
    data = folder.read_small(_NAME)
    try:
        return msgspec.json.decode(data, type=list[RuleChange]) if data else []
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        path = f"{folder.where}/{_NAME}"
        raise LogError(f"the rule changes in {path} are damaged ({error}): remove the file", path=path) from error


def write_rule_changes(folder: "Folder", changes: Sequence[RuleChange]) -> None:
    """Write the rule changes of the folder's run, in place of those that it has. Raises OSError."""
    folder.write_small(_NAME, msgspec.json.encode(list(changes)))
