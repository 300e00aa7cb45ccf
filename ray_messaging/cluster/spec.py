"""The facts of an experiment with which its actors and handles start."""

import logging
import re
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ray_messaging.addressing.channels import AGENT_CHAT, USER_CHAT, USER_SURVEY
from ray_messaging.eventlog.log_uri import checked_uri

if TYPE_CHECKING:  # these modules import pydantic, which `import ray_messaging` must not do
    from ray_messaging.config import Calls, MessagingConfig, ServerConfig, Steps
    from ray_messaging.observability.tracing.settings import Tracing

logger = logging.getLogger(__name__)

_SESSION = re.compile(r"session_\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d_\d+_\d+")  # a folder that Ray makes and deletes

SUBTOPICS = (AGENT_CHAT, USER_CHAT, USER_SURVEY)


class AudienceHome(NamedTuple):
    """The place of the audience files: a Ray node and a folder. An audience is a set of (sender, hearer) pairs."""

    node: str
    folder: str


@dataclass(frozen=True)
class ExperimentFacts:
    """The name and the settings of an experiment, for all of its processes. `run` is a random id of this start."""

    exp_id: str
    run: str
    settings: "MessagingConfig"
    log_dir: str | None = None
    steps: "Steps | None" = None  # None: groups send and receive at any time
    metrics: bool = False  # whether groups count what they send and fetch
    audiences: AudienceHome | None = None
    tracing: "Tracing | None" = None
    calls: "Calls | None" = None  # limits of calls through `me.remember`; None: no limits

    @property
    def group_settings(self) -> "MessagingConfig":
        """Return the settings of a group. A group sends for its own agents only, unless strict_senders is False."""
        strict = self.settings.strict_senders is not False
        return self.settings.model_copy(update={"strict_senders": strict})

    @property
    def interceptor_name(self) -> str:
        """Return the name of the Ray actor that is the interceptor."""
        return f"{self.exp_id}/interceptor"

    @property
    def log_name(self) -> str:
        """Return the name of the Ray actor that writes the event log."""
        return f"{self.exp_id}/log"

    @property
    def audiences_name(self) -> str:
        """Return the name of the Ray actor that reads and writes audiences for other nodes."""
        return f"{self.exp_id}/audiences"

    def group_name(self, group: str) -> str:
        """Return the name of the Ray actor that hosts a group."""
        return f"{self.exp_id}/group/{group}"


@dataclass(frozen=True, kw_only=True)
class Experiment(ExperimentFacts):
    """The facts of an experiment, and the address of its server."""

    redis: "ServerConfig"
    withheld: bool = False  # whether `without_password` has removed passwords from this copy

    def without_password(self) -> "Experiment":
        """Return a copy without passwords, for pickling. Ray stores arguments of tasks, and users store pickles."""
        redis = self.redis.without_passwords()
        return replace(self, redis=redis, withheld=self.withheld or redis != self.redis)


class PickledRule(NamedTuple):
    """A pickled rule. Its name is for the error if the rule cannot be unpickled."""

    name: str
    data: bytes


@dataclass(frozen=True, kw_only=True)
class InterceptorSpec(ExperimentFacts):
    """Arguments of the interceptor's actor."""

    rules: tuple[PickledRule, ...]
    on_existing: str
    nodes: tuple[str, ...] = ()  # the Ray nodes of the embedded servers; empty: the server is the user's own
    fork: int | None = None  # begin with the checkpoint in log_dir that was made after this step; None: begin anew
    per_node: bool = False  # whether large messages of a group are stored on the server of the group's node

    def experiment(self, redis: "ServerConfig") -> Experiment:
        """Return the facts of the experiment, with `redis` as the address of its server."""
        return Experiment(**{fact.name: getattr(self, fact.name) for fact in fields(ExperimentFacts)}, redis=redis)


def no_log(exp_id: str) -> str:
    """Return the error text for an experiment without an event log."""
    return f"experiment {exp_id!r} keeps no event log: Messaging.start({exp_id!r}, log_dir='a folder') starts one"


def absolute(log_dir: str | Path | None) -> str | None:
    """Return a path as an absolute path, and a URI or None unchanged.

    If Ray will delete the folder at the path, a warning is logged.

    Raises: ConfigError for a URI that cannot be used.
    """
    if log_dir is None or "://" in checked_uri(str(log_dir)):
        return None if log_dir is None else str(log_dir)
    given = Path(log_dir).expanduser()
    found = given.absolute()
    if not given.is_absolute() and any(map(_SESSION.fullmatch, found.parts)):
        logger.warning(
            "log_dir=%r is relative, and this process runs in Ray's session folder (as a Ray job or a Tune trial), so "
            "the event log is kept in %s, which is removed with the session: pass an absolute path, or a URI",
            str(log_dir),
            found,
        )
    else:
        logger.info("the event log is kept in %s", found)
    return str(found)
