"""The versions of audiences that a process keeps in memory."""

from ray_messaging.audiences.cache import AudienceCache
from ray_messaging.audiences.member_edges import MemberEdges
from ray_messaging.model.agent_sets import AgentSet
from ray_messaging.model.extension import AudiencePairs

AGENTS, DIGEST = AgentSet.of([1, 2]), b"them"


class Folder:
    """A source that remembers which versions were loaded; version n has n members."""

    def __init__(self):
        self.loaded = []

    async def load(self, name, version):
        self.loaded.append((name, version))
        return MemberEdges.among(AgentSet.of(range(version)))


async def test_a_version_stays_until_the_second_one_after_it():
    folder = Folder()
    cache = AudienceCache(folder)
    for version in (1, 2, 1, 2, 3):
        assert (await cache.edges(AudiencePairs("near", version))).pairs == version * (version - 1)
    await cache.edges(AudiencePairs("far", 1))
    assert folder.loaded == [("near", 1), ("near", 2), ("near", 3), ("far", 1)]
    for version in (2, 3, 1):  # what comes late is loaded again
        assert (await cache.edges(AudiencePairs("near", version))).pairs == version * (version - 1)
    assert folder.loaded[4:] == [("near", 1)]
    await cache.edges(AudiencePairs("far", 1))
    assert len(folder.loaded) == 5


async def test_the_pairs_of_some_agents_go_with_their_version():
    folder = Folder()
    cache = AudienceCache(folder)
    old = await cache.toward(AudiencePairs("near", 1), AGENTS, DIGEST)
    assert await cache.toward(AudiencePairs("near", 1), AGENTS, DIGEST) is old
    await cache.toward(AudiencePairs("near", 3), AGENTS, DIGEST)
    assert await cache.toward(AudiencePairs("near", 1), AGENTS, DIGEST) is not old
    assert folder.loaded == [("near", 1), ("near", 3), ("near", 1)]
