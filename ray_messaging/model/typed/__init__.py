"""Payloads in typed columns."""
