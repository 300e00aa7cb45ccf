"""Bring batches to the mailboxes: verdicts, routes, frames, receipts."""
