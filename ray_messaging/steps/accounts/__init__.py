"""The account of a step: fates and digests of its messages."""
