-- Shared by the scripts of steps and send_to_boxes.lua: see open, ahead and opened in step_barrier.lua.
-- Whether a step that a group has asked for is open.
local function is_open(step, asked, ahead, opened)
  return asked and tonumber(asked) == step and (step <= tonumber(opened) or (ahead and tonumber(ahead) == step))
end
