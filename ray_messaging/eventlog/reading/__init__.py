"""The log's reading side: questions, and what is made of their answers."""
