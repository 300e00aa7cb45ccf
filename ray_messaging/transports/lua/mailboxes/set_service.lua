#!lua flags=allow-oom
-- Keep a note on the service of a mailbox. Allowed when memory is full: askers learn by it that a service has ended.
--
-- KEYS[1] state  hash of the mailbox: epoch of its reader, service = the note (see wire/service_notes.py), served = the
--                epoch of the reader that wrote it: under another one it counts no more
-- ARGV[1] the reader's epoch  [2] note, '' for none
-- Returns 1, or 0 where another reader has the mailbox, or it is gone
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then return 0 end
if ARGV[2] == '' then redis.call('HDEL', KEYS[1], 'service', 'served')
else redis.call('HSET', KEYS[1], 'service', ARGV[2], 'served', ARGV[1]) end
return 1
