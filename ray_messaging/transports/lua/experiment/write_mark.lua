#!lua flags=allow-oom
-- Write something, so that WAIT covers all before it. Allowed when memory is full: what frees memory is waited for, too.
redis.call('SET', KEYS[1], 1, 'PX', 60000)
