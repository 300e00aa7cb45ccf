"""`messaging.run`, which runs a model of agents step by step, and `ray_messaging.run`, which does so without Ray."""
