"""The event log: a folder of Parquet files with a row for each send to each recipient."""
