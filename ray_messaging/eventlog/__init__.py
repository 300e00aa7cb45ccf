"""The event log: one row per send and recipient, in Parquet segments."""
