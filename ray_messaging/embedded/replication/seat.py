"""The one seat for a replica that each of the two servers has.

Two replicas would be one too many: WAIT counts whichever confirms, and the Sentinel may promote the other one. So the
user as which a replica logs in at its primary is off at first. The owner of a replica sets a password of its own there
when it starts its server, which expels a replica of an earlier owner, as one on a node that Ray has given up.
"""

import hashlib
from typing import Any, Final

from ray_messaging.embedded.replication.sentinel_client import connected

USER: Final = "replica"
MEMBER: Final = "member-"  # a user that is always off, and only tells whose server it is


def belongs_to(server: tuple[str, int], password: str, member: str) -> bool:
    """Return whether a server is one of a member's, as of a former owner. Raises RedisError, OSError."""
    with connected(*server, password) as client:
        return f"{MEMBER}{member}" in client.acl_users()


def take_seat(primary: tuple[str, int], password: str, token: str, *, expel: bool) -> bool:
    """Take the seat at a primary, by its password; return whether it is ours.

    Args: expel says to take it from another replica, too. Raises: RedisError, OSError.
    """
    with connected(*primary, password) as client:
        held: Any = client.acl_getuser(USER)
        if "on" in held["flags"]:
            if hashlib.sha256(token.encode()).hexdigest() in held["passwords"]:
                return True
            if not expel:
                return False
        client.execute_command("ACL", "SETUSER", USER, "on", "resetpass", f">{token}")
        client.execute_command("CLIENT", "KILL", "USER", USER)
    return True
