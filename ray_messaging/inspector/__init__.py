"""The inspector: web pages about a run, which need the extra `[ui]`, and answers for assistants, which need `[mcp]`."""
