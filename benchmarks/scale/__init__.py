"""Cost of a message as replicas and groups are added."""
