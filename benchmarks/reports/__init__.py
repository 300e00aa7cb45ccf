"""A run's results as Markdown and on a terminal, and the targets they are held against."""
