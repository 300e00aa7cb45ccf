"""The sending side of a messager."""
