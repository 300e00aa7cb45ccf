-- Set a new interceptor epoch: verdicts and delegations of others do not count any more. A late attempt, after another
-- interceptor has the epoch, changes nothing.
--
-- KEYS[1] meta  hash: run = the start of the experiment that has it, interceptor = the epoch, standing = the number under
--               which standing verdicts count, kept = number of the last write of write_rule_state.lua under this epoch
-- ARGV[1] the caller's run ("": any)  [2] the epoch that the caller found ("": none)  [3] the epoch that it takes
-- Returns 1; 0: there is another epoch than it found; -1: another run has the experiment
local now = redis.call('HMGET', KEYS[1], 'run', 'interceptor')
if ARGV[1] ~= '' and now[1] ~= ARGV[1] then return -1 end
if now[2] == ARGV[3] then return 1 end
if (now[2] or '') ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'interceptor', ARGV[3])
redis.call('HDEL', KEYS[1], 'standing', 'kept')
return 1
