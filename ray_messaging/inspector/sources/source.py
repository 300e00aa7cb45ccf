"""Port between the pages and a run: a running experiment, or the folder of a log."""

from collections.abc import Sequence
from typing import Protocol

from ray_messaging.inspector.values import AgentFacts, LetterFacts, Row, RowQuery, RuleFacts, State, Traffic
from ray_messaging.observability.health.findings import Health


class Source(Protocol):
    """Facts about one run. All calls block, so pages make them in threads; they raise MessagingError.

    `live` says whether the run goes on. None as an answer means that this source cannot know it.
    """

    title: str
    live: bool

    def traffic(self) -> Traffic | None:
        """Return the traffic: of the last minute where it is live, else of the whole run; None without a log."""
        ...

    def state(self) -> State | None:
        """Return groups, steps and counters as of now."""
        ...

    def record(self) -> list[tuple[str, str]]:
        """Return the facts of the run, as names and values; [] where the pages show it as it is now."""
        ...

    def health(self) -> Health | None:
        """Return the findings of a health check."""
        ...

    def rules(self) -> list[RuleFacts]:
        """Return the rules, in order; of a log those that acted."""
        ...

    def rows(self, query: RowQuery) -> Sequence[Row]:
        """Return the last matching rows, the newest last; raise InvalidQuery, ConfigError without a log."""
        ...

    def agent(self, agent: str) -> AgentFacts:
        """Return the facts about one agent; raises as `rows`."""
        ...

    def dead_letters(self) -> list[LetterFacts] | None:
        """Return the first dead letters."""
        ...
