"""`messaging.run`: a model, its agents and its groups, driven step by step in Ray actors."""
