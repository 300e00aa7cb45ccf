"""The kinds of audiences, and the versions of each audience, which are in the server's list of all mailboxes.

To add a kind: name it in `AudienceKind`, build its pairs in `building.py`, take its arguments in
`cluster/handles/audience.py`.
"""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from ray_messaging.errors import ConfigError, UnknownName


class AudienceKind(StrEnum):
    """The kind of an audience: whether its pairs come from a graph, from lists of members, or from positions."""

    GRAPH = "graph"
    MEMBERS = "members"
    POSITIONS = "positions"


class AudienceFacts(msgspec.Struct, frozen=True):
    """Facts about a version of an audience, as the experiment's directory of mailboxes has them.

    `digest` is the hash of its pairs, as hex.

    If groups made this version by moving agents in a step, `moved` is that step. If the version was made by a call from
    outside of the steps, such as `Audience.add`, `moved` is -1.
    """

    kind: AudienceKind
    pairs: int
    digest: str
    moved: int = -1


class AudienceVersion(msgspec.Struct, frozen=True):
    """One version of an audience.

    In steps, this version is used for messages that are sent in step `since` or later.
    """

    name: str
    version: int
    since: int
    facts: AudienceFacts


class StoredVersion(msgspec.Struct, array_like=True, frozen=True):
    """A version of an audience as the server stores it.

    In steps, it is used for messages that are sent in step `since` or later. `facts` is the description of the audience
    as JSON; "" means that the audience was removed.
    """

    version: int
    since: int
    facts: str


AudienceTexts = Mapping[str, tuple[StoredVersion, ...]]
NO_AUDIENCES: AudienceTexts = {}
# Decodes the audiences as the server stores them: JSON, with the versions of each audience by its name.
decode_audiences = msgspec.json.Decoder(dict[str, tuple[StoredVersion, ...]]).decode
_read_facts = msgspec.json.Decoder(AudienceFacts).decode


def encode_facts(facts: AudienceFacts) -> str:
    """Encode the facts about a version as the server stores them."""
    return msgspec.json.encode(facts).decode()


class Audiences:
    """All audiences of an experiment, by name, as one version of the directory of mailboxes has them."""

    def __init__(self) -> None:
        self._texts: AudienceTexts = NO_AUDIENCES

    def update(self, texts: AudienceTexts) -> None:
        """Replace the versions of all audiences by those that were read from the server."""
        self._texts = texts

    def names(self) -> list[str]:
        """Return the names of the audiences that exist now, sorted."""
        return sorted(name for name, versions in self._texts.items() if versions[-1].facts)

    def __bool__(self) -> bool:
        """Return whether any audience exists or has existed."""
        return bool(self._texts)

    def last_version(self, name: str) -> int:
        """Return the number of the last version of an audience, or 0 if it never had one."""
        versions = self._texts.get(name)
        return versions[-1].version if versions else 0

    def has_positions(self) -> bool:
        """Return whether any audience is made from positions of agents."""
        return any(f'"kind":"{AudienceKind.POSITIONS}"' in versions[-1].facts for versions in self._texts.values())

    def moved_with(self, name: str, step: int) -> bool:
        """Return whether an audience already has the version that results from moves of agents in step `step - 1`."""
        found = [each for each in self._texts.get(name, ()) if each.since == step and each.facts]
        return any(_read_facts(each.facts).moved == step - 1 for each in found)

    def of(self, name: str, step: int | None = None) -> AudienceVersion:
        """Return the version of an audience that is used for messages of a step (None: the newest version).

        Raises: UnknownName if there is no such version, ConfigError if a later release of this library made the
        version.
        """
        versions = self._texts.get(name, ())
        found = [each for each in versions if step is None or each.since <= step]
        if not found or not found[-1].facts:
            raise UnknownName(self._missing(name, versions, step), kind="audience", value=name)
        last = found[-1]
        try:
            return AudienceVersion(name, last.version, last.since, _read_facts(last.facts))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"audience {name!r} was made by a later release of ray_messaging, and this release cannot read it "
                f"({error}): upgrade ray_messaging in this process"
            ) from error

    def _missing(self, name: str, versions: tuple[StoredVersion, ...], step: int | None) -> str:
        later = [each.since for each in versions if each.facts and step is not None and each.since > step]
        if later:
            return (
                f"audience {name!r} does not exist in step {step}, but from step {later[0]} on: use it from that step "
                "on"
            )
        if versions:
            return (
                f"audience {name!r} was removed: make it again by messaging.create_audience, or name another audience"
            )
        listed = ", ".join(map(repr, self.names()[:5])) or "none"
        return f"there is no audience {name!r}: make it by messaging.create_audience, or name one that exists: {listed}"
