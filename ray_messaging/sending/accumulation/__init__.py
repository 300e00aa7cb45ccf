"""Messages on their way in: checked, encoded, and collected into pending batches."""
