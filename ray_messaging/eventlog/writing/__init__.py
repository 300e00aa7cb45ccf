"""The log's writing side: from the streams into segments, each row once."""
