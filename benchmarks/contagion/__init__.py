"""A contagion by thresholds, as a newcomer writes it, beside Mesa: whole programs in fresh processes."""
