"""An embedded server with a replica, and the Sentinel that decides which of the two is the primary."""
