#!lua flags=allow-oom
-- Take the entry of a mailbox that is gone from its shard out of the directory, unless it has come again. Its messager,
-- where it lives, hears on its ear, and subscribes to nothing any more: it would count as a taker.
--
-- KEYS[1] meta  hash: directory = version   KEYS[2] entries, KEYS[3] entered: see enter_mailbox.lua
-- ARGV[1] mailbox  [2] its entry as the caller has seen it  [3] channel of its ear
-- Returns 1; 0: it has another entry, or none
if redis.call('HGET', KEYS[2], ARGV[1]) ~= ARGV[2] then return 0 end
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
redis.call('HINCRBY', KEYS[1], 'directory', 1)
redis.pcall('PUBLISH', ARGV[3], 'gone')
return 1
