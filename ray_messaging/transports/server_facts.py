"""State of a server, and of an experiment on it, as a health check sees them."""

from dataclasses import dataclass, field

from ray_messaging.addressing.channels import is_survey_mailbox


@dataclass(frozen=True, slots=True)
class Mailbox:
    """State of one mailbox; ages are in seconds, None where unknown. `lease_s` is None if the lease is not renewed."""

    name: str
    messages: int
    nbytes: int
    max_messages: int
    max_bytes: int
    oldest_s: float | None
    lease_s: float | None
    leased: bool
    unlogged: int
    unlogged_bytes: int
    hosts: bool  # no other mailbox listens for its agents
    owner: str = ""
    acked: int = 0  # messages acknowledged behind an unacknowledged one
    in_steps: bool = False  # one that holds up a step is a straggler; else it may be that its run has ended
    ended: str = ""  # why its service has ended, while nobody else serves it
    failures: int = 0  # messages whose handlers failed

    @property
    def waits_for_its_name(self) -> bool:
        """Whether it belongs to a closed messager with a name, which may be opened again; a group's does not."""
        return self.lease_s is None and not self.leased and not self.hosts and not self.keeps_answers

    @property
    def keeps_answers(self) -> bool:
        """Whether it is the record of a survey, which nobody commits."""
        return is_survey_mailbox(self.name)


@dataclass(frozen=True, slots=True)
class Kept:
    """Data of one experiment on a server; of more than 1,000 mailboxes only the first ones."""

    interceptor_epoch: int
    logged: bool
    dead_letters: int
    dead_letters_dropped: int
    noted: int
    noted_bytes: int
    max_noted: int
    max_noted_bytes: int
    mailboxes_in_all: int
    mailboxes: list[Mailbox]


@dataclass(slots=True)
class ServerFacts:
    """Answers of a server; `error` is the reason if it gave none. `skew_s` is about its clock minus ours."""

    where: str
    error: str = ""
    refused: bool = False
    info: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)  # empty if we may not read them
    round_trip_ms: float = 0.0
    skew_s: float = 0.0
    lacking: list[str] = field(default_factory=list)  # rights of our user, as ACL SETUSER takes them
    kept: Kept | None = None
    allow_eviction: bool = False  # the config accepts a server that deletes data
    by_cluster: bool = False  # the config names a cluster, and not this server
    others: "list[ServerFacts]" = field(default_factory=list)  # those that carry bodies of steps
