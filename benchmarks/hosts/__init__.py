"""Messages and steps between three hosts, beside plain Ray: `python -m benchmarks.hosts`."""
