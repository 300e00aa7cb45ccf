#!lua flags=allow-oom
-- Refuse an attempt of release_agents.lua, and those before it, from now on. Allowed when memory is full.
--
-- KEYS[1] state  hash of the mailbox: see release_agents.lua
-- ARGV[1] the reader's epoch  [2] number of the attempt
-- Returns 0 where it is done, else 7; -1 and -2 as release_agents.lua
local verdict = check_attempt(KEYS[1], redis.call('HGET', KEYS[1], 'epoch'), ARGV[1], ARGV[2])
if verdict then return verdict end
redis.call('HSET', KEYS[1], 'released', ARGV[1] .. ' ' .. ARGV[2])
let_in(KEYS[1])
return 7
