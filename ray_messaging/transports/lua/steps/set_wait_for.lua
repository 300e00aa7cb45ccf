-- Set which groups a group waits for, whatever the settings say, and wake those that wait.
--
-- KEYS[1] steps: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] all or senders
-- Returns 1; -2: the experiment has no steps
local now = redis.call('HMGET', KEYS[1], 'settings', 'wait_for')
if not now[1] then return -2 end
if now[2] ~= ARGV[2] then
  redis.call('HSET', KEYS[1], 'wait_for', ARGV[2])
  tell(ARGV[1], 'wait_for')
end
return 1
