"""Health checks: findings about a server and its actors, made from facts that were collected elsewhere."""
