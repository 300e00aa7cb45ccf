#!lua flags=allow-oom
-- Raise the heartbeat of an interceptor, and return the server's data about it.
--
-- KEYS[1] meta  hash: run = the start of the experiment that has it, interceptor = epoch of the one that may write, kept =
--               number of its last write, beat = counts while it lives (none: it was closed)
-- ARGV[1] the caller's run  [2] its epoch  [3] 1: it lives, 0: it ends
-- Returns {run, interceptor, kept}
local now = redis.call('HMGET', KEYS[1], 'run', 'interceptor', 'kept')
if now[1] == ARGV[1] and now[2] == ARGV[2] then
  if ARGV[3] == '1' then redis.call('HINCRBY', KEYS[1], 'beat', 1) else redis.call('HDEL', KEYS[1], 'beat') end
end
return now
