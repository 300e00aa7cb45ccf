#!lua flags=allow-oom
-- Remove a mailbox; its unread frames become dead letters.
--
-- KEYS as in load_directory.lua; KEYS[5] state: hash: epoch
-- ARGV[1] the reader's epoch, or -1 for whoever reads it  [2] prefix  [3] mailbox  [4] reason
-- ARGV[5] bytes of dead letters that are kept
-- Returns the number of dead frames, or -1 where a newer reader holds the mailbox
local epoch = redis.call('HGET', KEYS[5], 'epoch')
if ARGV[1] ~= '-1' and epoch and epoch ~= ARGV[1] then return -1 end
return bury(KEYS, ARGV[2], ARGV[3], ARGV[4], ARGV[5])
