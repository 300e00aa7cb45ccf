"""What every room uses: limits, retries, the health of background tasks."""
