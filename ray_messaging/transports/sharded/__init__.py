"""Transport and stores of an experiment over several Redis or Valkey servers, its shards."""
