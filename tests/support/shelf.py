"""Audiences in memory, for messagers without Ray."""

import numpy as np

from ray_messaging.audiences.audience_kinds import AudienceFacts, AudienceKind, encode_facts
from ray_messaging.audiences.building import build_edges
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.errors import UnknownName
from ray_messaging.model.agent_sets import AgentSet


class Shelf(dict):
    """A source of audiences in memory."""

    async def load(self, name, version):
        try:
            return self[name, version]
        except KeyError:
            raise UnknownName(f"no {name!r}", kind="audience", value=name) from None

    async def add(self, messager, name, edges):
        """Make the next version of an audience."""
        version = messager.directory.audiences.last_version(name) + 1
        self[name, version] = edges
        facts = (
            "" if edges is None else encode_facts(AudienceFacts(AudienceKind.GRAPH, edges.pairs, edges.digest.hex()))
        )
        assert await messager.engine.transport.set_audience(name, version, facts) is not None
        await messager.engine.frame_sender.refresh()


def graph(pairs):
    """Return the edges of an audience from pairs of sender and hearer."""
    return build_edges([np.array(pairs, np.int64).reshape(-1, 2)])


def among(members):
    """Return the edges of an audience whose members hear each other."""
    return MemberEdges.among(AgentSet.of([*members]))


def written(messager):
    """Record the frames that a messager writes to mailboxes: mailbox, rows that count, bytes."""
    frames, send = [], messager.engine.frame_sender.transport.send

    async def recorded(request):
        frames.extend((write.mailbox, write.rows, len(write.frame)) for write in request.writes if write.frame)
        return await send(request)

    messager.engine.frame_sender.transport.send = recorded
    return frames
