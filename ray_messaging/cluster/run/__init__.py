"""`messaging.run`, which runs a model of agents step by step, and the same without Ray."""
