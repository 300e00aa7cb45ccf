"""How the event log's columns become Parquet, by what each costs to write and takes on the disk.

Measured on one core, payloads of 75 bytes, 1,000 agents (1,000,000 agents): in ns and bytes per row

    payload                          200 ns  43 B       lz4; zstd 1 costs as much and takes 28 B
    message_id                        21 ns   0.7 B     no dictionary; with one 55 ns and 2.3 B
    channel                            6 ns   1.3 B     by dictionary (50 ns, 4.1 B without; with one 141 ns, 9.8 B)
    from_id, to_id                     6 ns   1.4 B     each, by differences (8 ns, 2.7 B; by dictionary 55 ns, 5.3 B)
    times, step, row               3 to 5 ns   0.1 B     each, by differences
    all others                     2 to 4 ns   0.02 B    each, by dictionary
    statistics                    1 to 25 ns            numbers 1 ns, names 4, channels 25, payloads 20

and together 290 ns and 50 bytes. The bulky columns are packed by lz4, as a query by agent must unpack all of them: of
10,000,000 rows it takes 0.75 s so, and 1.0 s with zstd. Row groups of 262,144 rows would save 3% and of 8,192 cost 12%
more; the smaller they are, the less a query by agent has to read beside the rows it wants.
"""

from typing import Any

import pyarrow as pa

ROW_GROUP_ROWS = 32_768

# Each row group repeats the segment's whole dictionary, so one that is as long as the column gains nothing.
_DICTIONARY_ENTRIES = ROW_GROUP_ROWS // 4

_NUMBERS = {"step", "from_id", "to_id", "sent_at", "delivered_at", "row"}
_LABELS = "labels.list.element"  # Parquet's name of what is in the lists
_BULKY = ("message_id", "payload", "payload_before")
_STATISTICS = ["step", "from_id", "to_id", "sent_at", "fate"]


def parquet_options(table: pa.Table) -> dict[str, Any]:
    """Return the options of a ParquetWriter for a table whose dictionaries are unified."""
    texts = [name for name in table.schema.names if name not in _NUMBERS]
    packed = [_LABELS if name == "labels" else name for name in texts]
    return {
        "compression": dict.fromkeys(packed, "ZSTD") | dict.fromkeys(_BULKY, "LZ4"),
        "compression_level": {name: 1 for name in packed if name not in _BULKY},
        "use_dictionary": [_LABELS, *(name for name in texts if _repeats(table[name]))],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in table.schema.names if name in _NUMBERS},
        "write_statistics": _STATISTICS,
        "write_page_index": True,
        "write_page_checksum": True,  # 3% of the time; a damaged page is said to be one, and never read as rows
    }


def _repeats(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_dictionary(column.type):
        return False
    return max((len(chunk.dictionary) for chunk in column.chunks), default=0) <= _DICTIONARY_ENTRIES
