package app

import "github.com/cove-sandbox/cove/internal/surface/cli"

// shortVerbs are verbs of the aio command of the public image that do not match the name of an
// operation.
var shortVerbs = []cli.Short{
	{Words: "gui tap", Op: "browser_actions", Doc: "Click at a position of the display.",
		Fixed: map[string]string{"action_type": "CLICK"}, Args: []string{"x", "y"}, Flags: []string{"button", "num_clicks"}},
	{Words: "gui move", Op: "browser_actions", Doc: "Move the pointer to a position of the display.",
		Fixed: map[string]string{"action_type": "MOVE_TO"}, Args: []string{"x", "y"}},
	{Words: "gui drag", Op: "browser_actions", Doc: "Drag from the pointer to a position of the display.",
		Fixed: map[string]string{"action_type": "DRAG_TO"}, Args: []string{"x", "y"}},
	{Words: "gui scroll", Op: "browser_actions",
		Doc:   "Turn the mouse wheel by pixels, or by up to 10 steps. A negative number scrolls up; write it after --.",
		Fixed: map[string]string{"action_type": "SCROLL"}, Args: []string{"dy"}, Flags: []string{"dx"}},
	{Words: "gui type", Op: "browser_actions", Doc: "Type text into the focused window.",
		Fixed: map[string]string{"action_type": "TYPING"}, Args: []string{"text"}},
	{Words: "gui press", Op: "browser_actions", Doc: "Press a key, such as enter.",
		Fixed: map[string]string{"action_type": "PRESS"}, Args: []string{"key"}},
	{Words: "gui hotkey", Op: "browser_actions", Doc: "Press keys together, such as ctrl c.",
		Fixed: map[string]string{"action_type": "HOTKEY"}, Args: []string{"keys"}},
	{Words: "shell output", Op: "shell_view", Doc: "Show the output of the running or last command of a session.", Args: []string{"id"}},
}
