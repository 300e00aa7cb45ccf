"""Gather messages into pending batches until the send loop takes them."""
