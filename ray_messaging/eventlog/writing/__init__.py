"""Writing of the event log: reading of the streams on the server, and writing of Parquet files."""
