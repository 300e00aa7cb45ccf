"""The pairs of sender and hearer of an audience's version.

Each pair is contained once, and the pairs do not change. Restrictions (by `toward` or `of`) have the digest of all
pairs. `expand` needs 16 bytes a pair; `counts` tells how many pairs senders have, so that callers can pass few senders
at a time.
"""

from typing import TypeAlias

from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.member_edges import MemberEdges

Edges: TypeAlias = GraphEdges | MemberEdges
