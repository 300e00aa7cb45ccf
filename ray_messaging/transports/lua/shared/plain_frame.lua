-- Shared by send_one_frame.lua and large_frames.lua: a frame for one mailbox, with nothing published or noted, outside of
-- transactions. Keys and arguments are those of send.lua.

-- Return what the mailbox holds with the frame in it; nothing where anything speaks against it, which send.lua decides.
local function room_for(state, lease, mailbox, seq, rows, size)
  local sender = redis.call('HMGET', KEYS[2], 'epoch', 's:' .. mailbox)
  local meta = redis.call('HMGET', KEYS[1], 'directory', 'interceptor', 'standing')
  local box = redis.call('HMGET', state, 'max_messages', 'max_bytes', 'messages', 'bytes', 'leased', 'born', 'logged',
                         'unlogged', 'unlogged_bytes', 'stepped')
  if sender[1] ~= ARGV[1] or tonumber(seq) ~= tonumber(sender[2] or 0) + 1 or (meta[1] or '0') ~= ARGV[2]
      or not (meta[2] == ARGV[3] or meta[3] == ARGV[3] or ARGV[3] == '-1' or (ARGV[3] == '-2' and not meta[2]))
      or not box[1] or box[10] or (box[5] == '1' and redis.call('EXISTS', lease) == 0) then return end
  local messages, bytes, unlogged, unlogged_bytes = box[3] + rows, box[4] + size, 0, 0
  if box[7] then unlogged, unlogged_bytes = (box[8] or 0) + rows, (box[9] or 0) + size end
  if limit_fate(size, tonumber(box[1]), tonumber(box[2]), messages, bytes, unlogged, unlogged_bytes) ~= 0 then return end
  return {stream = ARGV[5] .. 'mailbox:' .. mailbox .. ':' .. box[6], messages = messages, bytes = bytes,
          logged = box[7], unlogged = unlogged, unlogged_bytes = unlogged_bytes}
end

-- Count a frame; `last` is the id of the mailbox's last entry. Without a table of fields, as lone messages come by here.
local function count_frame(state, mailbox, seq, box, last)
  if box.logged then
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last, 'unlogged', box.unlogged,
               'unlogged_bytes', box.unlogged_bytes)
  else
    redis.call('HSET', state, 'messages', box.messages, 'bytes', box.bytes, 'last', last)
  end
  redis.call('HSET', KEYS[2], 's:' .. mailbox, seq)
end
