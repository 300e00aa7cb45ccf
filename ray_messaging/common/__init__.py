"""What all folders share: retry policies, texts, progress lines, the health of background tasks."""
