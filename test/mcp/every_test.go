package mcp

import (
	"archive/zip"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// answer is the result of a tool over MCP or REST.
type answer struct {
	Content    []json.RawMessage
	Structured json.RawMessage `json:"structuredContent"`
	IsError    bool
}

func (a answer) text() string {
	var all []string
	for _, c := range a.Content {
		var part struct{ Type, Text string }
		_ = json.Unmarshal(c, &part)
		if part.Type != "text" {
			part.Text = "[" + part.Type + "]"
		}
		all = append(all, part.Text)
	}
	return strings.Join(all, "\n")
}

// TestEveryToolWorks: every tool of both families is called with valid arguments in a real sandbox, once
// over MCP and once over REST. Results match the schemas of the tools, and both interfaces agree. A
// step whose text varies is compared only by the kinds of its content.
func TestEveryToolWorks(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Need(t, "node", "chromium", "Xtigervnc", "openbox", "ffmpeg", "rg")
	url := serve(t, "AIO_VENV="+testenv.NeedFile(t, "../../.venv"))
	site := httptest.NewServer(http.HandlerFunc(serveSite))
	defer site.Close()
	client := gomcp.NewClient(&gomcp.Implementation{Name: "test", Version: "1"}, nil)
	c, err := client.Connect(t.Context(), &gomcp.StreamableClientTransport{Endpoint: url + "/mcp?tools=all,older", MaxEventSize: 8 << 20}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	schemas := map[string]*jsonschema.Resolved{}
	for tool, err := range c.Tools(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		schemas[tool.Name] = outputSchema(t, tool)
	}
	overMCP := func(tool string, args json.RawMessage) (a answer) {
		r, err := c.CallTool(t.Context(), &gomcp.CallToolParams{Name: tool, Arguments: args})
		if err != nil {
			t.Fatalf("%s %s: %v", tool, args, err)
		}
		b, _ := json.Marshal(r)
		_ = json.Unmarshal(b, &a)
		return a
	}
	overREST := func(tool string, args json.RawMessage) answer {
		var reply struct{ Data answer }
		if text := post(t, url+"/v1/mcp/all/tools/"+tool, string(args)); json.Unmarshal([]byte(text), &reply) != nil {
			t.Fatalf("%s %s: got %s, want JSON", tool, args, text)
		}
		return reply.Data
	}
	read := func(uri string) string { return readListed(t, c, uri) }
	first := runStory(t, url, site.URL, "xqm", schemas, overMCP, read)
	second := runStory(t, url, site.URL, "xqr", schemas, overREST, read)
	for i, s := range story {
		if s.varies {
			first[i], second[i] = kinds(first[i]), kinds(second[i])
		}
		if first[i] != second[i] {
			t.Errorf("%s %s:\ngot  %.600s over REST,\nwant %.600s as over MCP", s.tool, s.args, second[i], first[i])
		}
	}
	called := map[string]bool{}
	for _, s := range story {
		called[s.tool] = true
	}
	for name := range schemas {
		if !called[name] {
			t.Errorf("no step calls %s; add one to the story", name)
		}
	}
}

// readListed reads a resource that the server lists.
func readListed(t *testing.T, c *gomcp.ClientSession, uri string) string {
	t.Helper()
	listed := false
	for r, err := range c.Resources(t.Context(), nil) {
		must(t, err)
		listed = listed || r.URI == uri
	}
	r, err := c.ReadResource(t.Context(), &gomcp.ReadResourceParams{URI: uri})
	if err != nil || !listed {
		t.Errorf("%s: got %v, listed %v, want a listed resource", uri, err, listed)
		return ""
	}
	return r.Contents[0].Text + string(r.Contents[0].Blob)
}

func outputSchema(t *testing.T, tool *gomcp.Tool) *jsonschema.Resolved {
	t.Helper()
	if tool.OutputSchema == nil {
		return nil
	}
	b, err := json.Marshal(tool.OutputSchema)
	var s jsonschema.Schema
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		t.Fatalf("%s: %v", tool.Name, err)
	}
	r, err := s.Resolve(nil)
	if err != nil {
		t.Fatalf("%s: %v", tool.Name, err)
	}
	return r
}

// runStory runs all steps and returns their normalized results.
func runStory(t *testing.T, url, site, run string, schemas map[string]*jsonschema.Resolved,
	call func(string, json.RawMessage) answer, read func(uri string) string) []string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"skill-a", "skill-b"} {
		folder := filepath.Join(dir, "skills", name)
		must(t, os.MkdirAll(folder, 0o700))
		must(t, os.WriteFile(filepath.Join(folder, "SKILL.md"),
			[]byte("---\nname: "+name+"\ndescription: Says "+name+".\n---\nSteps of "+name+".\n"), 0o600))
	}
	res, err := http.Post(url+"/v1/skills/register", "application/x-www-form-urlencoded", strings.NewReader("path="+dir+"/skills"))
	if err != nil || res.StatusCode != 200 {
		t.Fatalf("register the skills: got %v %v, want 200", res, err)
	}
	res.Body.Close()
	names := map[string]string{"<W>": dir, "<N>": run, "<S>": site, "<ZIP>": zipped(t)}
	var out []string
	fill := func(text string) string {
		for name, value := range names {
			text = strings.ReplaceAll(text, name, value)
		}
		return text
	}
	for _, s := range story {
		if s.resource != "" {
			if got, want := read(fill(s.resource)), fill(s.want); !strings.Contains(got, want) {
				t.Errorf("%s: got %.300q, want %q in it", fill(s.resource), got, want)
			}
			out = append(out, "")
			continue
		}
		args := fill(s.args)
		a := call(s.tool, json.RawMessage(args))
		text := a.text()
		if a.IsError || !strings.Contains(text, s.want) {
			t.Errorf("%s %s over %s: got an error (%v) or %.2000q, want %q in it", s.tool, args, run, a.IsError, text, s.want)
		}
		if schema := schemas[s.tool]; schema != nil {
			var tree any
			if err := json.Unmarshal(a.Structured, &tree); err != nil {
				t.Errorf("%s over %s: got structured content %.300s, want content that matches its schema", s.tool, run, a.Structured)
			} else if err := schema.Validate(tree); err != nil {
				t.Errorf("%s over %s: got %.600s, want content that matches its schema: %v", s.tool, run, a.Structured, err)
			}
		} else if len(a.Structured) > 0 && string(a.Structured) != "null" {
			t.Errorf("%s over %s: got structured content %.300s without a schema", s.tool, run, a.Structured)
		}
		for name, pattern := range s.keep {
			m := regexp.MustCompile(pattern).FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("%s over %s: got %.600q, want a match of %s", s.tool, run, text, pattern)
			}
			names[name] = m[1]
		}
		out = append(out, normalize(text, names))
	}
	return out
}

var (
	ids     = regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}|\b[0-9a-f]{8,}\b|\b[0-9A-F]{32}\b`)
	figures = regexp.MustCompile(`[0-9]+`)
)

// normalize removes values that differ between two runs: names, times and numbers.
func normalize(text string, names map[string]string) string {
	for _, name := range []string{"<W>", "<N>"} {
		text = strings.ReplaceAll(text, names[name], name)
	}
	return figures.ReplaceAllString(ids.ReplaceAllString(text, "0"), "0")
}

// kinds returns the part of a varying text that is compared: its images. Links depend on the length of
// the text.
func kinds(text string) string { return strings.Repeat("[image] ", strings.Count(text, "[image]")) }

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// zipped returns an archive with one file, as base64.
func zipped(t *testing.T) string {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	f, err := w.Create("inside.txt")
	must(t, err)
	fmt.Fprint(f, "from the archive")
	must(t, w.Close())
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// serveSite serves the pages for the browser tools.
func serveSite(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/form":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><title>Form</title><h1>Form</h1><body style="height:4000px">
<p>Some words to read.</p>
<a href="/other">Other page</a> <a id="file" href="/report.csv" download>Report</a>
<form onsubmit="done.textContent='sent '+name1.value; return false"><input id="name1" placeholder="Name">
<button id="go" type="button" onclick="done.textContent='clicked'">Go</button></form>
<select id="color"><option value="r">Red</option><option value="g">Green</option></select>
<input id="agree" type="checkbox"> <input id="pick" type="file">
<div id="hover" onmouseover="done.textContent='hovered'" tabindex="0" role="button">Hover me</div>
<div id="source" draggable="true">Drag me</div>
<div id="target" ondragover="event.preventDefault()" ondrop="done.textContent='dropped'">Here</div>
<p id="done"></p><script>console.log('form is ready'); window.done = document.getElementById('done')</script>`)
	case "/other":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!doctype html><title>Other</title><h1>Other</h1><p>Another page. <a href="/form">Form</a>`)
	case "/report.csv":
		w.Header().Set("Content-Disposition", `attachment; filename="report.csv"`)
		fmt.Fprint(w, "a,b\n1,2\n")
	default:
		http.NotFound(w, r)
	}
}
