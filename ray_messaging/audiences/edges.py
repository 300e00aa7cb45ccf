"""The pairs of sender and hearer in a version of an audience.

The pairs never change, and each occurs once. `toward` and `of` restrict them to some hearers or senders; the digest
stays that of all pairs. `expand` needs 16 bytes for each pair. `counts` returns how many pairs senders have, so that
callers can expand only a few senders at a time.
"""

from typing import TypeAlias

from ray_messaging.audiences.graph_edges import GraphEdges
from ray_messaging.audiences.member_edges import MemberEdges

Edges: TypeAlias = GraphEdges | MemberEdges
