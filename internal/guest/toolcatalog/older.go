package toolcatalog

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

// alias is another name of a tool that takes the same arguments.
type alias struct {
	name, route string
	preset      map[string]any
}

// aliases are the older names of operations.
var aliases = []alias{
	{"markitdown_extract", "POST /v1/util/convert_to_markdown", nil},
	{"markitdown_convert_to_markdown", "POST /v1/util/convert_to_markdown", nil},
	{"markitdown_extract_text", "POST /v1/util/convert_to_markdown", nil},
	{"markitdown_extract_images", "POST /v1/util/extract_images", nil},
	{"sandbox_convert_to_markdown", "POST /v1/util/convert_to_markdown", nil},
	{"sandbox_str_replace_editor", "POST /v1/file/str_replace_editor", nil},
	{"sandbox_get_browser_info", "GET /v1/browser/info", nil},
	{"sandbox_browser_get_info", "GET /v1/browser/info", nil},
	{"browser_get_info", "GET /v1/browser/info", nil},
	{"sandbox_browser_screenshot", "GET /v1/browser/screenshot", map[string]any{"format": "jpeg"}},
	{"sandbox_get_sandbox_context", "GET /v1/sandbox", nil},
	{"sandbox_python_packages", "GET /v1/sandbox/packages/python", nil},
	{"sandbox_nodejs_packages", "GET /v1/sandbox/packages/nodejs", nil},
	{"sandbox_exec_command", "POST /v1/shell/exec", nil},
	{"sandbox_view_shell", "POST /v1/shell/view", nil},
}

// older returns the tools of the older family.
func (r routes) older() []toolset.Tool {
	var all []toolset.Tool
	for _, a := range aliases {
		o, ok := r[a.route]
		if !ok {
			continue
		}
		t := toolset.Tool{Op: o, Name: a.name, Server: serverOf(o), Older: true, World: reachesOut(a.route),
			Render: renderers[a.route], Doc: plainDoc(o.Doc)}
		for field, value := range a.preset {
			t.Args = append(t.Args, toolset.Arg{Field: field, Preset: value})
		}
		if a.route == "GET /v1/browser/info" {
			t.Render = func(out any, _ map[string]any) toolset.Result { return renderJSON(out) }
		}
		all = append(all, t)
	}
	add := func(o op.Op, server string, world bool) {
		all = append(all, toolset.Tool{Op: o, Server: server, Older: true, World: world})
	}
	add(op.New(spec("sandbox_execute_bash", "Run a command in the sandbox's shell, which keeps its directory and "+
		"variables. Newer: bash_exec, terminal_execute."), r.executeBash), "shell", true)
	add(op.New(spec("sandbox_execute_code", "Run Python or JavaScript. Newer: code_execute."), r.executeCode), "code", true)
	add(op.New(spec("sandbox_file_operations", "Read, write, replace, search, find, list, grep or glob files. "+
		"Newer: the tools file_read, file_write and so on."), r.fileOperations), "file", false)
	read := spec("sandbox_get_packages", "List the installed packages of Python, Node.js or both.")
	read.ReadOnly = true
	add(op.New(read, r.packages), "sandbox", false)
	if r.has("GET /v1/skills/metadatas", "GET /v1/skills/{name}/content") {
		read = spec("sandbox_load_skill", "List the registered skills, or read one by its name.")
		read.ReadOnly = true
		add(op.New(read, r.loadSkill), "sandbox", false)
	}
	if r.has("POST /v1/browser/actions") {
		for _, name := range []string{"sandbox_browser_execute_action", "browser_gui_execute_action"} {
			add(op.New(spec(name, "Use mouse or keyboard on the display. Newer: browser_actions."), r.guiAction), "browser", true)
		}
	}
	return all
}

// contextTool returns the tool that describes the sandbox to a model.
func (r routes) contextTool() toolset.Tool {
	o := r["GET /v1/sandbox"]
	return toolset.Tool{Op: o, Name: "sandbox_get_context", Title: "About the sandbox", Server: "sandbox", Core: true, Render: renderContext,
		Doc: "Describe this computer: system, user, folders, listening ports, runtimes and installed tools. Call it once at the start."}
}

type bashIn struct {
	Cmd        string   `json:"cmd" doc:"Command line"`
	Cwd        *string  `json:"cwd" doc:"Directory to run in"`
	NewSession bool     `json:"new_session" default:"false" nullable:"true" doc:"Run in a separate shell"`
	Timeout    *float64 `json:"timeout" doc:"Seconds to wait for the end; then the command continues. Default: 30"`
	Truncate   bool     `json:"truncate" default:"true" nullable:"true" doc:"Truncate long output"`
	Background bool     `json:"run_in_background" default:"false" nullable:"true" doc:"Return immediately"`
}

// executeBash runs a command in a shell that all calls share.
func (r routes) executeBash(ctx context.Context, in bashIn) (toolset.Result, error) {
	args := map[string]any{"command": in.Cmd, "truncate": in.Truncate, "timeout": 30, "async_mode": in.Background,
		"id": "sandbox_execute_bash", "strict": true}
	if in.Cwd != nil {
		args["exec_dir"] = *in.Cwd
	}
	if in.Timeout != nil {
		args["timeout"] = *in.Timeout
	}
	if in.NewSession {
		delete(args, "id")
	}
	out, err := r.call(ctx, "POST /v1/shell/exec", args)
	if err != nil {
		return toolset.Result{}, err
	}
	o := toObject(out)
	return renderJSON(object{"command": o["command"], "status": o["status"], "output": o["output"],
		"exit_code": o["exit_code"], "session_id": o["session_id"]}), nil
}

type codeIn struct {
	Code     string `json:"code" doc:"Code to run"`
	Language string `json:"language" default:"python" nullable:"true" doc:"python or javascript"`
	Timeout  *int   `json:"timeout" doc:"Seconds after which the code is interrupted"`
}

// executeCode returns the output as JSON, with plots as images.
func (r routes) executeCode(ctx context.Context, in codeIn) (toolset.Result, error) {
	language := map[string]string{"py": "python", "python3": "python", "js": "javascript", "node": "javascript",
		"nodejs": "javascript"}[in.Language]
	if language == "" {
		language = in.Language
	}
	args := map[string]any{"code": in.Code, "language": language}
	if in.Timeout != nil {
		args["timeout"] = *in.Timeout
	}
	out, err := r.call(ctx, "POST /v1/code/execute", args)
	if err != nil {
		return toolset.Result{}, err
	}
	o := toObject(out)
	shown := renderCode(out, nil)
	delete(o, "code")
	delete(o, "stdout") // outputs contains it
	delete(o, "stderr")
	delete(o, "traceback")
	for _, item := range o.list("outputs") {
		if data := toObject(toObject(item)["data"]); data != nil {
			for media := range data {
				if strings.HasPrefix(media, "image/") {
					data[media] = "see the image"
				}
			}
		}
	}
	result := renderJSON(o)
	result.Images = shown.Images
	return result, nil
}

type fileIn struct {
	Action     string   `json:"action" enum:"read,write,replace,search,find,list,grep,glob" doc:"What to do"`
	Path       string   `json:"path" doc:"File or folder"`
	Content    *string  `json:"content" doc:"write: the text; replace: the old text; search: a regular expression"`
	Target     *string  `json:"target" doc:"replace: the new text"`
	Pattern    *string  `json:"pattern" doc:"find, glob: a glob; grep: a regular expression"`
	Encoding   string   `json:"encoding" default:"utf-8" nullable:"true" doc:"Encoding of the text"`
	StartLine  *int     `json:"start_line" doc:"read: first line, from 1"`
	EndLine    *int     `json:"end_line" doc:"read: last line, included"`
	Append     bool     `json:"append" default:"false" nullable:"true" doc:"write: append"`
	Recursive  bool     `json:"recursive" default:"false" nullable:"true" doc:"list: include subfolders"`
	ShowHidden bool     `json:"show_hidden" default:"false" nullable:"true" doc:"list: include hidden files"`
	FileTypes  []string `json:"file_types" nullable:"true" doc:"list: only these extensions"`
	Sudo       bool     `json:"sudo" default:"false" nullable:"true" doc:"Act as root"`
}

// fileOperations combines all file tools.
func (r routes) fileOperations(ctx context.Context, in fileIn) (toolset.Result, error) {
	need := func(name string, v *string) (string, error) {
		if v == nil {
			return "", op.Errorf(op.Invalid, "missing argument %q, which action %q requires", name, in.Action)
		}
		return *v, nil
	}
	var args map[string]any
	var err error
	switch in.Action {
	case "read":
		args = map[string]any{"file": in.Path, "sudo": in.Sudo}
		if in.StartLine != nil && *in.StartLine > 0 {
			args["start_line"] = *in.StartLine - 1
		}
		if in.EndLine != nil && *in.EndLine > 0 {
			args["end_line"] = *in.EndLine
		}
	case "write":
		args = map[string]any{"file": in.Path, "append": in.Append, "encoding": in.Encoding, "sudo": in.Sudo}
		args["content"], err = need("content", in.Content)
	case "replace":
		args = map[string]any{"file": in.Path, "sudo": in.Sudo}
		if args["old_str"], err = need("content", in.Content); err == nil {
			args["new_str"], err = need("target", in.Target)
		}
	case "search":
		args = map[string]any{"file": in.Path, "sudo": in.Sudo}
		args["regex"], err = need("content", in.Content)
	case "find":
		args = map[string]any{"path": in.Path}
		args["glob"], err = need("pattern", in.Pattern)
	case "grep", "glob":
		args = map[string]any{"path": in.Path}
		args["pattern"], err = need("pattern", in.Pattern)
	default:
		args = map[string]any{"path": in.Path, "recursive": in.Recursive, "show_hidden": in.ShowHidden, "file_types": in.FileTypes}
	}
	if err != nil {
		return toolset.Result{}, err
	}
	out, err := r.call(ctx, "POST /v1/file/"+in.Action, args)
	if err != nil {
		return toolset.Result{}, err
	}
	if numbers := toObject(out).list("line_numbers"); numbers != nil {
		for i := range numbers {
			numbers[i] = object{"n": numbers[i]}.number("n") + 1
		}
	}
	return renderJSON(out), nil
}

type packagesIn struct {
	Language *string `json:"language" doc:"python or nodejs; both if omitted"`
}

func (r routes) packages(ctx context.Context, in packagesIn) (string, error) {
	kinds := []struct{ title, route, names string }{
		{"Python Packages:", "GET /v1/sandbox/packages/python", "python,py,pip"},
		{"Node.js Packages:", "GET /v1/sandbox/packages/nodejs", "nodejs,node,js,javascript,npm"},
	}
	var text strings.Builder
	for _, k := range kinds {
		if in.Language != nil && !slices.Contains(strings.Split(k.names, ","), strings.ToLower(*in.Language)) {
			continue
		}
		out, err := r.call(ctx, k.route, map[string]any{})
		if err != nil {
			return "", err
		}
		text.WriteString(k.title + "\n")
		list, ok := out.([]any)
		if !ok {
			list = toObject(out).list("packages")
		}
		for _, item := range list {
			p := toObject(item)
			fmt.Fprintf(&text, "  - %s==%s\n", p.text("name"), p.text("version"))
		}
	}
	if text.Len() == 0 {
		return "", op.Errorf(op.Invalid, "unknown language %q; use python or nodejs", *in.Language)
	}
	return text.String(), nil
}

type skillIn struct {
	Name *string `json:"name" doc:"Skill to read; without it, all skills are listed"`
}

func (r routes) loadSkill(ctx context.Context, in skillIn) (string, error) {
	if in.Name != nil && *in.Name != "" {
		out, err := r.call(ctx, "GET /v1/skills/{name}/content", map[string]any{"name": *in.Name})
		return toObject(out).text("content"), err
	}
	out, err := r.call(ctx, "GET /v1/skills/metadatas", map[string]any{})
	if err != nil {
		return "", err
	}
	skills := toObject(out).list("skills")
	text := fmt.Sprintf("Skills Count: %d\n", len(skills))
	for _, item := range skills {
		s := toObject(item)
		text += fmt.Sprintf("- %s: %s\n", s.text("name"), toObject(s["metadata"]).text("description"))
	}
	return text, nil
}

type actionIn struct {
	Action map[string]any `json:"action" doc:"The action: action_type and its fields, as in browser_actions"`
}

func (r routes) guiAction(ctx context.Context, in actionIn) (toolset.Result, error) {
	out, err := r.call(ctx, "POST /v1/browser/actions", in.Action)
	if err != nil {
		return toolset.Result{}, err
	}
	o := toObject(out)
	return renderJSON(object{"status": o["status"], "action_performed": o["action_performed"]}), nil
}
