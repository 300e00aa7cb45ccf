"""The event log: who said what to whom, and what was stopped and why; from the streams into Parquet, and out again."""
