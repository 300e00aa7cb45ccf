"""The handle of a group, blocking or for async code, and its connections to the group's actor and to the server."""
