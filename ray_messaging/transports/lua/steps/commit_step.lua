-- Write all frames of an open step into boxes, and close it: one call for a small step.
--
-- KEYS and ARGV[1] to [6] as in send_to_boxes.lua
-- ARGV[7] to [11] as ARGV[5] to [9] of close_step.lua
-- ARGV[...] per write as in send_to_boxes.lua
-- Returns what close_step.lua does; {4}: nothing was written, send_to_boxes.lua tells why
local closing = {rows = ARGV[7], counts = ARGV[8], how = ARGV[9], state = ARGV[10], go_on = ARGV[11]}
local now = redis.call('HMGET', KEYS[3], 'attempt', 'closed')
if now[1] == ARGV[3] and tonumber(now[2]) < tonumber(ARGV[4]) then
  local fates = write_to_boxes(KEYS, 12, true)
  for i = 1, #fates do
    if fates[i] ~= 0 and (i == 1 or fates[i] ~= 1) then return {4} end
  end
elseif now[1] ~= ARGV[3] and redis.call('HGET', ARGV[1] .. 'steps:' .. ARGV[4], 'k:' .. ARGV[2]) ~= ARGV[3] then
  return {4}
else
  -- An earlier call has closed it, and its answer was lost. To open the next step is a write, which this script, unlike
  -- open_step.lua, may not make while memory is full.
  closing.go_on = '0'
end
return cover_step(ARGV[1], ARGV[2], ARGV[3], ARGV[4], closing)
