-- The beginning of send.lua: one frame for one mailbox, with nothing published or noted, outside of transactions. So are
-- most calls, and those of lone messages, for whom the rest of the script is half of the server's time. What nothing
-- speaks against is written here; all else send.lua decides, from the beginning. Keys and arguments are described there.
if #ARGV == 12 and KEYS[4] and ARGV[6] == '0' and ARGV[11] == '-1' and ARGV[12] == '0' then
  local sender = redis.call('HMGET', KEYS[2], 'epoch', 's:' .. ARGV[7])
  local meta = redis.call('HMGET', KEYS[1], 'directory', 'interceptor', 'standing')
  local box = redis.call('HMGET', KEYS[3], 'max_messages', 'max_bytes', 'messages', 'bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'stepped')
  if sender[1] == ARGV[1] and tonumber(ARGV[8]) == tonumber(sender[2] or 0) + 1
      and (meta[1] or '0') == ARGV[2]
      and (meta[2] == ARGV[3] or meta[3] == ARGV[3] or ARGV[3] == '-1' or (ARGV[3] == '-2' and not meta[2]))
      and box[1] and not box[10] and (box[5] ~= '1' or redis.call('EXISTS', KEYS[4]) == 1) then
    local rows, size = tonumber(ARGV[9]), #ARGV[10]
    local max_rows, max_bytes, messages, bytes = tonumber(box[1]), tonumber(box[2]), box[3] + rows, box[4] + size
    local unlogged, unlogged_bytes = 0, 0
    if box[7] then unlogged, unlogged_bytes = (box[8] or 0) + rows, (box[9] or 0) + size end
    if limit_fate(size, max_rows, max_bytes, messages, bytes, unlogged, unlogged_bytes) == 0 then
      -- Refused while memory is full, as the first write, and before anything has happened.
      local last = redis.call('XADD', ARGV[5] .. 'mailbox:' .. ARGV[7] .. ':' .. box[6], '*', 'f', ARGV[10])
      if box[7] then
        redis.call('HSET', KEYS[3], 'messages', messages, 'bytes', bytes, 'last', last, 'unlogged', unlogged,
                   'unlogged_bytes', unlogged_bytes)
      else
        redis.call('HSET', KEYS[3], 'messages', messages, 'bytes', bytes, 'last', last)
      end
      redis.call('HSET', KEYS[2], 's:' .. ARGV[7], ARGV[8])
      return {0, 0, -1}
    end
  end
end
