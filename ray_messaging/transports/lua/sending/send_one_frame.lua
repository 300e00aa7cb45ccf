-- The beginning of send.lua: one frame for one mailbox, see plain_frame.lua. So are most calls, and those of lone messages,
-- for whom the rest of the script is half of the server's time. What nothing speaks against is written here; all else
-- send.lua decides, from the beginning.
if #ARGV == 12 and KEYS[4] and ARGV[6] == '0' and ARGV[11] == '-1' and ARGV[12] == '0' then
  local box = room_for(KEYS[3], KEYS[4], ARGV[7], ARGV[8], tonumber(ARGV[9]), #ARGV[10])
  if box then
    -- Refused while memory is full, as the first write, and before anything has happened.
    local last = redis.call('XADD', box.stream, '*', 'f', ARGV[10])
    count_frame(KEYS[3], ARGV[7], ARGV[8], box, last)
    return {0, 0, -1}
  end
end
