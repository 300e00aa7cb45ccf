"""The Ray side: the embedded server, the actors, and the handles that users hold."""
