#!lua flags=allow-oom
-- Let a mailbox take messages again, as the agents that have left it are at another server: senders reload the directory
-- before they send anything more here. Allowed when memory is full, because it frees some.
--
-- KEYS[1] meta  hash: directory = version  [2] state  hash of the mailbox: see release_agents.lua
-- ARGV[1] epoch and [2] number of the attempt
-- Returns 1; 0: it was so before
if redis.call('HGET', KEYS[2], 'departed') ~= ARGV[1] .. ' ' .. ARGV[2] then return 0 end
if redis.call('HDEL', KEYS[2], 'going') == 0 then return 0 end
let_in(KEYS[2])
redis.call('HINCRBY', KEYS[1], 'directory', 1)
return 1
