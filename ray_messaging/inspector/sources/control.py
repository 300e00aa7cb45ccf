"""Port of the calls that change an experiment: pages have it only where they were opened with `--control`."""

from collections.abc import Sequence
from typing import Protocol

from ray_messaging.inspector.values import Preview


class Control(Protocol):
    """Changes of a running experiment. All calls block, and raise MessagingError.

    A rule is a text in the grammar of the command line, as "max-length:500"; `examples` shows how they are written.
    """

    examples: Sequence[str]

    def pause(self) -> str:
        """Begin no further step; return the result, in words."""
        ...

    def resume(self) -> str:
        """Let the steps go on."""
        ...

    def advance(self, steps: int) -> str:
        """Let some steps run, and pause again."""
        ...

    def write(self, to_id: str, text: str) -> str:
        """Send a message of the user to an agent; return its fate, in words."""
        ...

    def ask(self, to_id: str, text: str) -> str:
        """Ask an agent as the user; return its answer."""
        ...

    def preview(self, spec: str) -> Preview:
        """Return the messages that a rule would have blocked lately."""
        ...

    def insert_rule(self, spec: str, index: int | None) -> str:
        """Insert a rule before the one at a place (None: at the end)."""
        ...

    def replace_rule(self, which: str, spec: str) -> str:
        """Replace a rule, given by its name."""
        ...

    def pop_rule(self, which: str) -> str:
        """Remove a rule, given by its name."""
        ...

    def requeue(self, letter: str) -> str:
        """Send the messages of a dead letter to the mailboxes that listen for them now."""
        ...

    def close(self) -> None:
        """Disconnect."""
        ...
