"""Health checks: findings about servers, actors and nodes, made from facts that other code has collected."""
