"""Benchmarks, each with its peer or limit in the same run."""
