"""Handle of a group, blocking and for async code, and its way to the group's actor and server."""
