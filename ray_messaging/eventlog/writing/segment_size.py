"""Size and age at which the event log closes a segment."""

# At most two segments are in memory: the open one, and the one that is written to a file. So these bound the log's
# memory: about 200 MB with reading, row building and Parquet. A busy writer keeps the memory for the next segment, an
# idle one returns it to the system.
SEGMENT_ROWS = 262_144
SEGMENT_BYTES = 40 * 2**20

# After this time rows are written to a file that is not full yet.
SEGMENT_AGE_S = 30.0
