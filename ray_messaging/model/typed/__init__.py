"""Payloads in typed columns: an array for each named value of the payloads, in place of JSON for each payload."""
