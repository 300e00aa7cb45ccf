#!lua flags=no-writes
-- Return a page of an experiment's keys. A plain SCAN would also answer where a cluster has moved them away.
--
-- KEYS[1] meta  any key of the experiment
-- ARGV[1] cursor of this server, 0 at first  [2] pattern  [3] about how many keys are looked at
-- Returns {run id of the server, next cursor, 0 at the end, keys}
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3])
return {redis.call('INFO', 'server'):match('run_id:(%w+)') or '', page[1], page[2]}
