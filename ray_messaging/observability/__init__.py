"""What is judged of a server and of actors, from what they said: no questions are asked here."""

from ray_messaging.observability.findings import Finding, Health, Level

__all__ = ["Finding", "Health", "Level"]
