-- Claim an experiment for a start (run) of it. A late attempt, after another start has it, changes nothing.
--
-- KEYS[1] meta  hash: run = the start that has it, erasing = the run that has to erase what was there before it, beat: see
--               heartbeat.lua; format = the number of what lies on the server, shards = how many there are: with others a
--               process is refused, see raise_entry_ids.lua
-- ARGV[1] the run that the caller found ("": none)  [2] its own  [3] 1: it erases what is there  [4] its format
-- ARGV[5] number of shards
-- Returns 1; 2: it is to erase what is there; 0: another start has it
local now = redis.call('HMGET', KEYS[1], 'run', 'erasing')
if now[1] ~= ARGV[2] then
  if (now[1] or '') ~= ARGV[1] then return 0 end
  redis.call('HSET', KEYS[1], 'run', ARGV[2], 'format', ARGV[4], 'shards', ARGV[5])
  redis.call('HDEL', KEYS[1], 'beat')
  -- An erasure that its run did not end is ours to end.
  if ARGV[3] == '1' or now[2] then
    redis.call('HSET', KEYS[1], 'erasing', ARGV[2])
    return 2
  end
end
return now[2] and 2 or 1
