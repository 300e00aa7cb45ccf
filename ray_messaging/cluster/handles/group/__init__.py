"""Handle of a group, blocking and for async code, and its connections to the group's actor and to the server."""
