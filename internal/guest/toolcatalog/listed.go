package toolcatalog

import "github.com/cove-sandbox/cove/internal/api/toolset"

// row is a tool of the listed family that is one operation.
type row struct {
	route, name, title string
	doc                string
	only               []string
	args               []toolset.Arg
}

// rows are the tools that a model sees by default, most used first. The texts describe when to use
// a tool and when to use another, and show one call.
var rows = []row{
	{"POST /v1/bash/exec", "bash_exec", "Run a command",
		"Run a command line in a new bash process and return its output and exit code. Use it for commands that " +
			"end on their own: builds, tests, git, package managers. " +
			"For a program that you must type into, or to keep variables, use terminal_execute; to run Python or JavaScript, code_execute. " +
			`A command that exceeds timeout continues; read the rest with bash_output. Example: {"command": "make ` +
			`test", "exec_dir": "/home/gem/app", "timeout": 120}`,
		[]string{"command", "exec_dir", "env", "timeout", "async_mode"},
		[]toolset.Arg{{Field: "exec_dir", Doc: "Directory to run in"}, {Field: "env", Doc: "Environment variables"},
			{Field: "timeout", Doc: "Seconds to wait for the end"}, {Field: "async_mode", Doc: "Return immediately"}}},
	{"POST /v1/bash/output", "bash_output", "Read a command's output",
		"Read more output of a command that bash_exec started. Pass the session_id and command_id that it " +
			"returned, and the offset where the last result ended. With wait, it waits for new output.",
		[]string{"session_id", "command_id", "offset", "stderr_offset", "wait", "wait_timeout"},
		[]toolset.Arg{{Field: "limit", Preset: 20000}, {Field: "session_id", Doc: "From bash_exec"},
			{Field: "command_id", Doc: "From bash_exec"}, {Field: "offset", Doc: "Offset in stdout to continue at"},
			{Field: "stderr_offset", Doc: "Offset in stderr to continue at"}, {Field: "wait", Doc: "Wait for new output"},
			{Field: "wait_timeout", Doc: "Seconds to wait"}}},
	{"POST /v1/bash/kill", "bash_kill", "Stop a command",
		"Send a signal to a command that bash_exec started, and to its child processes.", nil,
		[]toolset.Arg{{Field: "session_id", Doc: "From bash_exec"}, {Field: "command_id", Doc: "From bash_exec"},
			{Field: "signal", Doc: "Name of the signal"}}},
	{"POST /v1/shell/exec", "terminal_execute", "Run in a terminal",
		"Run a command in a terminal that keeps its directory, variables and programs between calls. Pass " +
			"session_id to continue in the same terminal. Use it for interactive or long-lived programs; for a single command use bash_exec. " +
			`Type into the running program with shell_write, view its output with shell_view. Example: {"session_id": "dev", ` +
			`"command": "cd app && npm start", "async_mode": true}`,
		[]string{"id", "command", "exec_dir", "timeout", "async_mode"},
		[]toolset.Arg{{Field: "id", Name: "session_id", Doc: "Terminal to run in; a new one if omitted"},
			{Field: "exec_dir", Doc: "Directory to change to"},
			{Field: "timeout", Doc: "Seconds to wait for the end"}, {Field: "async_mode", Doc: "Return immediately"}}},
	{"POST /v1/shell/sessions/create", "terminal_session", "Open a terminal",
		"Open a terminal, or return an open one, with its session_id. terminal_execute opens one " +
			"automatically if necessary.", []string{"id", "exec_dir"}, []toolset.Arg{{Field: "id", Name: "session_id"}}},
	{"POST /v1/shell/kill", "terminal_kill", "Stop a terminal's command",
		"Stop the command that runs in a terminal. The terminal remains open.", nil,
		[]toolset.Arg{{Field: "id", Name: "session_id", Doc: "The terminal"}}},
	{"POST /v1/shell/write", "shell_write", "Type into a terminal",
		`Type into the program that runs in a terminal. \u0003 is Ctrl-C. Example: {"session_id": "dev", "input": ` +
			`"yes", "press_enter": true}`, nil, []toolset.Arg{{Field: "id", Name: "session_id", Doc: "The terminal"},
			{Field: "press_enter", Doc: "Press Enter after it. Default: true", Preset: true}}},
	{"POST /v1/shell/view", "shell_view", "View a terminal",
		"Show the screen of a terminal: the output of the running or last command.", nil,
		[]toolset.Arg{{Field: "id", Name: "session_id", Doc: "The terminal"}}},
	{"POST /v1/code/execute", "code_execute", "Run Python or JavaScript",
		"Run Python or JavaScript and return what it prints, the value of the last expression, and plots as " +
			"images. Use it to compute and to analyze data; for shell commands use bash_exec. " +
			`With session_id, variables are kept between calls. Example: {"language": "python", "code": "sum(range(10))"}`,
		[]string{"language", "code", "timeout", "cwd", "session_id"},
		[]toolset.Arg{{Field: "cwd", Doc: "Working directory"}, {Field: "session_id", Doc: "Name of a session; created if new"}}},
	{"POST /v1/file/read", "file_read", "Read a file",
		"Read a text file, or some of its lines. Long files are returned in parts; the result states where to continue. For " +
			"PDF, Word or Excel use markitdown_convert.",
		[]string{"file", "start_line", "end_line"}, []toolset.Arg{{Field: "file", Name: "path"},
			{Field: "start_line", Doc: "First line, counted from 1; -1 is the last line", Count: toolset.FirstLine},
			{Field: "end_line", Doc: "Last line, included; -1 is the last line", Count: toolset.LastLine}}},
	{"POST /v1/file/write", "file_write", "Write a file",
		"Create or overwrite a text file, or append to one. Folders are created. To change part of a file use file_str_replace_editor.",
		[]string{"file", "content", "append"}, []toolset.Arg{{Field: "file", Name: "path"}}},
	{"POST /v1/file/str_replace_editor", "file_str_replace_editor", "Edit a file",
		"Edit a file in place: str_replace (old_str must occur once), insert (after a line), create, view, " +
			"undo_edit. Lines are counted from 1. " +
			`Example: {"command": "str_replace", "path": "/home/gem/app/main.py", "old_str": "port = 80", "new_str": "port = 8080"}`,
		[]string{"command", "path", "file_text", "old_str", "new_str", "insert_line", "view_range"},
		[]toolset.Arg{{Field: "file_text", Doc: "create: the content"},
			{Field: "old_str", Doc: "str_replace: the text to replace"},
			{Field: "new_str", Doc: "str_replace, insert: the new text"}, {Field: "insert_line", Doc: "insert: line to insert after"},
			{Field: "view_range", Doc: "view: first and last line"}}},
	{"POST /v1/file/replace", "file_replace", "Replace in a file",
		"Replace every occurrence of a text in a file and return their number.",
		[]string{"file", "old_str", "new_str"}, []toolset.Arg{{Field: "file", Name: "path"}}},
	{"POST /v1/file/search", "file_search", "Search in one file",
		"Find the lines of one file that match a regular expression. For many files use file_grep.", []string{"file", "regex"},
		[]toolset.Arg{{Field: "file", Name: "path"}, {Field: "regex", Doc: "Regular expression in Python's syntax"}}},
	{"POST /v1/file/grep", "file_grep", "Search in many files",
		`Find the lines in a folder that match a regular expression, as path:line:text. Example: {"path": ` +
			`"/home/gem/app", "pattern": "def main", "include": ["*.py"]}`,
		[]string{"path", "pattern", "include", "exclude", "case_insensitive", "context_after", "max_results", "offset"},
		[]toolset.Arg{{Field: "include", Doc: "Only files with these patterns"},
			{Field: "context_after", Doc: "Lines to show after each"}, {Field: "max_results", Preset: 200}}},
	{"POST /v1/file/glob", "file_glob", "Find files by name",
		"Find files below a folder by a pattern such as **/*.py.", []string{"path", "pattern", "exclude"},
		[]toolset.Arg{{Field: "max_results", Preset: 500}}},
	{"POST /v1/file/list", "file_list", "List a folder",
		"List a folder, or a tree, with sizes.", []string{"path", "recursive", "show_hidden", "max_depth"}, nil},
	{"POST /v1/util/convert_to_markdown", "markitdown_convert", "Read a document or page",
		"Read a web page or a document (PDF, Word, PowerPoint, Excel, CSV, JSON, HTML) as Markdown. Use it to " +
			"read; to click, log in or run scripts on a page use browser_navigate. " +
			`Example: {"uri": "https://example.com"} or {"uri": "file:///home/gem/report.pdf"}`, nil, nil},
	{"POST /v1/browser/actions", "browser_actions", "Use mouse and keyboard",
		"Move, click, drag, scroll, type and press keys on the display, at pixels of browser_gui_screenshot. On " +
			"web pages, use browser_click and browser_type instead.",
		[]string{"action_type", "x", "y", "button", "num_clicks", "dx", "dy", "text", "key", "keys"},
		[]toolset.Arg{{Field: "action_type", Doc: "What to do"}, {Field: "x", Doc: "Pixels from the left"},
			{Field: "y", Doc: "Pixels from the top"}, {Field: "dx", Doc: "Pixels to the right"}, {Field: "dy", Doc: "Pixels down"},
			{Field: "text", Doc: "TYPING: the text"}, {Field: "key", Doc: "PRESS: a key such as enter or f5"},
			{Field: "keys", Doc: "HOTKEY: keys such as ctrl and c"}}},
}

// listed returns the tools of the listed family.
func (r routes) listed() []toolset.Tool {
	var all []toolset.Tool
	for _, t := range rows {
		o, ok := r[t.route]
		if !ok {
			continue
		}
		all = append(all, toolset.Tool{
			Op: o, Name: t.name, Title: t.title, Doc: t.doc, Server: serverOf(o), Core: true, World: reachesOut(t.route),
			Only: t.only, Args: t.args, Render: orFacts(renderers[t.route]),
		})
	}
	return append(all, r.contextTool())
}
