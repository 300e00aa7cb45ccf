"""The sends of a group in one step, and their way into boxes."""
