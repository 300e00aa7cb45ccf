#!lua flags=no-writes
-- List boxes with what counts of each.
--
-- KEYS[1] steps: see step_barrier.lua
-- ARGV[1] prefix of this experiment's keys  [2] [3] the first and the last step of the boxes
-- Returns for each box {its name, field, value of its covers...}: see step_box.lua
local reply = {}
for step = tonumber(ARGV[2]), tonumber(ARGV[3]) do
  for _, name in ipairs(redis.call('SMEMBERS', string.format('%ssteps:%.0f:boxes', ARGV[1], step))) do
    local found, box = redis.call('HGETALL', ARGV[1] .. 'cover:' .. name), {name}
    for i = 1, #found, 2 do
      if found[i]:sub(1, 2) == 'c:' then box[#box + 1], box[#box + 2] = found[i], found[i + 1] end
    end
    reply[#reply + 1] = box
  end
end
return reply
