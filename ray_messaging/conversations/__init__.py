"""Questions and answers of one messager."""
