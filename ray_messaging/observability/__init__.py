"""Health checks of an experiment."""

from ray_messaging.observability.health.findings import Finding, Health, Level

__all__ = ["Finding", "Health", "Level"]
