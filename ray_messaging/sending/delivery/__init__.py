"""Batches on their way out: verdicts, routing, frames, receipts."""
