#!lua flags=allow-oom
-- Raise the directory's version of a shard, because the directory has changed on the control shard: senders reload it
-- before they send anything more here. Allowed when memory is full, as a take-over is.
--
-- KEYS[1] meta  hash: directory = version
-- Returns the version
return redis.call('HINCRBY', KEYS[1], 'directory', 1)
