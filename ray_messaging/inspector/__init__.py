"""The inspector: web pages about a run. Nothing here is imported unless the extra `[ui]` is installed."""
