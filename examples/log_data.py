"""Read a log by Ray Data: for logs that are larger than the memory of one machine.

    pip install "ray[data]"
    python examples/moderation.py
    python examples/log_data.py moderation-logs/moderated

Ray Data reads the Parquet files of the folder in parallel, in the processes of the cluster. Say in `schema` which
columns you want, and of which type. Without `schema` Ray Data cannot join the files, because each file has a dictionary
of its own for texts such as the names of rules.
"""

import argparse
import json
import logging
from collections import Counter
from pathlib import Path

import pyarrow as pa
import ray
import ray.data

COLUMNS = pa.schema({"fate": pa.string(), "rule": pa.string(), "payload": pa.string()})


def word_counts(rows):
    """Count the words in the payloads of a batch, which is an Arrow table."""
    # A row of typed columns has no text as its payload.
    payloads = [json.loads(text) for text in rows["payload"].to_pylist() if text]
    texts = [value for payload in payloads for value in payload.values() if isinstance(value, str)]
    words = Counter(word for text in texts for word in text.lower().split())
    return pa.table({"word": pa.array(words.keys(), pa.string()), "count": pa.array(words.values(), pa.int64())})


def main():
    """Print the fates of all messages, and their most frequent words."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the log_dir of a run that has ended")
    plan = parser.parse_args()
    ray.init(ignore_reinit_error=True)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.default_hash_shuffle_parallelism = 4  # without this setting a groupby has 200 tasks, even for a small log
    logging.getLogger("ray.data").setLevel(logging.WARNING)

    log = ray.data.read_parquet(str(plan.folder.resolve()), schema=COLUMNS)
    print(f"{log.count():,} rows")
    for row in sorted(log.groupby(["fate", "rule"]).count().take_all(), key=lambda row: -row["count()"]):
        print(f"{row['count()']:>8,}  {row['fate']}{', ' + row['rule'] if row['rule'] else ''}")
    words = log.map_batches(word_counts, batch_format="pyarrow").groupby("word").sum("count").take_all()
    for row in sorted(words, key=lambda row: (-row["sum(count)"], row["word"]))[:5]:
        print(f"{row['sum(count)']:>8,}  {row['word']}")


if __name__ == "__main__":
    main()
