"""Parquet encoding of the event log's columns, chosen by time to write and size on disk.

Measured on one core, payloads of 75 bytes, 1,000 agents (1,000,000 agents): in ns and bytes per row

    payload                          135 ns  31 B       lz4
    message_id                        22 ns   4.2 B     lz4, no dictionary; as text differences 41 ns and 0.2 B
    channel                            7 ns   1.4 B     dictionary; a million of them without: 54 ns, 7.8 B
    from_id, to_id                     9 ns   1.4 B     each, differences (10 ns, 2.7 B)
    times, step, row                   5 ns   0.1 B     each, differences
    all others                   2 to 7 ns   0.01 B     each, dictionary

and together 260 ns and 40 bytes (285 ns, 49 bytes). With zstd 1 in place of lz4 each dictionary column takes 2 ns more,
a million channels 34 ns more and half the bytes, payloads the same time and two thirds of the bytes. But a query by
agent decompresses all of these: 1.0 s for 10,000,000 rows, against 0.75 s. Writing a row group at a time saves 9%
against 1,024 rows. Row groups of 262,144 rows would save 3%, of 8,192 cost 12% more. Smaller ones let a query by agent
read less.
"""

from typing import Any

import pyarrow as pa

ROW_GROUP_ROWS = 32_768

# Each row group repeats the segment's whole dictionary: one as long as the column would gain nothing.
_DICTIONARY_ENTRIES = ROW_GROUP_ROWS // 4

_NUMBERS = {
    "step", "step_read", "ordinal", "from_id", "to_id", "audience_version", "sent_at", "delivered_at", "row"
}  # fmt: skip
_LABELS = "labels.list.element"  # Parquet's name of the lists' elements
_STATISTICS = ["step", "from_id", "to_id", "sent_at", "fate"]


def parquet_options(table: pa.Table) -> dict[str, Any]:
    """Return the options of a ParquetWriter for a table with unified dictionaries."""
    texts = [name for name in table.schema.names if name not in _NUMBERS]
    packed = [_LABELS if name == "labels" else name for name in texts]
    return {
        "compression": dict.fromkeys(packed, "LZ4"),
        "use_dictionary": [_LABELS, *(name for name in texts if _repeats(table[name]))],
        "column_encoding": {name: "DELTA_BINARY_PACKED" for name in table.schema.names if name in _NUMBERS},
        "write_statistics": _STATISTICS,
        "write_batch_size": ROW_GROUP_ROWS,
        "write_page_index": True,
        "write_page_checksum": True,  # 3% of the time; a damaged page raises, and is never read as rows
    }


def _repeats(column: pa.ChunkedArray) -> bool:
    if not pa.types.is_dictionary(column.type):
        return False
    return max((len(chunk.dictionary) for chunk in column.chunks), default=0) <= _DICTIONARY_ENTRIES
