"""The inspector: pages about a run for people, in a browser. Nothing here is imported without the extra `[ui]`."""
