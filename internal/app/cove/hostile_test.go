package cove

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// hostileText sets a title, clears the screen, reverses text and hides some. A tab and a line break move the text
// that follows.
const hostileText = "\x1b]0;owned\x07\x1b[2J\u009b31m\x7f\rfake\u202eevil\u2066\u200bx\u2028\ufeff\U000e0041\tcolumn\nline"

// hostileHub answers every request with the same reply.
func hostileHub(t *testing.T, status int, media, body string) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", media)
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

// runVerb runs a verb of cove and returns everything that it prints.
func runVerb(t *testing.T, hub, stdin string, args ...string) (string, int) {
	t.Helper()
	t.Setenv("HOME", t.TempDir())
	t.Setenv("COVE_URL", hub)
	var out bytes.Buffer
	cmd, err := Command("0", args, host.Streams{In: strings.NewReader(stdin), Out: &out, Err: &out})
	if err == nil {
		err = cmd.ExecuteContext(t.Context())
	}
	if err != nil {
		out.WriteString(err.Error())
	}
	return out.String(), cli.Code(err)
}

// checkPrinted fails for control characters and invisible characters.
func checkPrinted(t *testing.T, what, out string) {
	t.Helper()
	if i := strings.IndexFunc(out, func(r rune) bool {
		return r != '\n' && r != '\t' && unicode.In(r, unicode.Cc, unicode.Cf, unicode.Zl, unicode.Zp)
	}); i >= 0 {
		t.Errorf("%s: got %q, want no control characters and no invisible characters", what, out)
	}
	if !strings.Contains(out, "owned") {
		t.Errorf("%s: got %q, want the text, escaped", what, out)
	}
}

// hostileReplies are all forms of replies, with the text in each field that can contain text.
func hostileReplies(t *testing.T) map[string]string {
	t.Helper()
	object := map[string]any{hostileText: hostileText, "labels": map[string]string{hostileText: hostileText}, "list": []any{hostileText},
		"objects": []any{map[string]any{hostileText: hostileText}}}
	for _, name := range []string{"name", "id", "message", "status", "created_at", "sandbox", "user"} {
		object[name] = hostileText
	}
	replies := map[string]string{}
	for shape, data := range map[string]any{
		"object": object, "list": []any{object}, "page": map[string]any{"items": []any{object}}, "text": hostileText, "texts": []any{hostileText},
	} {
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(map[string]any{"code": "0", "data": data, "hint": hostileText}); err != nil {
			t.Fatal(err)
		}
		// The encoder escapes U+2028; others do not.
		replies[shape] = strings.ReplaceAll(b.String(), `\u2028`, "\u2028")
	}
	return replies
}

// readVerbs are the read-only verbs, with a value for each argument.
func readVerbs(t *testing.T) [][]string {
	t.Helper()
	table, err := verbTable("0")
	if err != nil {
		t.Fatal(err)
	}
	var verbs [][]string
	for _, o := range table.All() {
		method, _ := o.MethodPath()
		if o.NoVerb || o.Binary || method != http.MethodGet || o.Out == nil {
			continue
		}
		line := o.Words()
		for _, f := range o.In().AllFields() {
			if f.Source == op.Path || f.Required {
				line = append(line, "--"+strings.ReplaceAll(f.Name, "_", "-"), "1")
			}
		}
		verbs = append(verbs, line)
	}
	if len(verbs) < 15 {
		t.Fatalf("got %d read-only verbs, want at least 15: %q", len(verbs), verbs)
	}
	return verbs
}

// TestHostileTextIsEscaped: no reply, in any output format, can send control characters to the terminal.
func TestHostileTextIsEscaped(t *testing.T) {
	verbs := readVerbs(t)
	for shape, reply := range hostileReplies(t) {
		hub := hostileHub(t, http.StatusOK, "application/json", reply)
		for _, verb := range verbs {
			for _, format := range []string{"table", "wide", "json", "name"} {
				out, _ := runVerb(t, hub, "", append(verb, "-o", format)...)
				checkPrinted(t, fmt.Sprintf("cove %s -o %s, %s", strings.Join(verb, " "), format, shape), out)
			}
		}
	}
}

// TestHostileErrorsAreEscaped: the same for error messages of all verbs.
func TestHostileErrorsAreEscaped(t *testing.T) {
	body, err := json.Marshal(map[string]string{"error": hostileText, "message": hostileText})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	for _, reply := range []string{string(body), hostileText} {
		hub := hostileHub(t, http.StatusConflict, "application/json", reply)
		for _, line := range []string{
			"get a b", "exec a -- true", "shell a", "run -- true", "cp a:x " + file, "port-forward a 0:1", "open a", "rm a b", "rm --all --yes",
			"logs a", "logs -f a", "list --watch", "secret set x", "audit verify", "login --key-file -",
		} {
			out, code := runVerb(t, hub, "value", strings.Fields(line)...)
			if strings.HasPrefix(reply, "{") {
				checkPrinted(t, "cove "+line, out)
			} else {
				checkPrinted(t, "cove "+line, out+"owned") // a reply that is not JSON is not always shown
			}
			if code == 0 {
				t.Errorf("cove %s: got exit code 0, want another", line)
			}
		}
	}
}

// TestHostileStreamsAreEscaped: the same for events.
func TestHostileStreamsAreEscaped(t *testing.T) {
	text, err := json.Marshal(hostileText)
	if err != nil {
		t.Fatal(err)
	}
	event := strings.ReplaceAll(`{"type":"deleted","op":X,"message":X,"sandbox":{"name":X,"status":X,"environment":X}}`, "X", string(text))
	gone := "event: error\ndata: {\"success\":false,\"message\":" + string(text) + "}\n\n"
	hub := hostileHub(t, http.StatusOK, "text/event-stream", "id: 1\ndata: "+event+"\n\n"+gone)
	for _, line := range []string{"audit tail", "events a", "watch"} {
		out, _ := runVerb(t, hub, "", strings.Fields(line)...)
		checkPrinted(t, "cove "+line, out)
	}
}

// TestAHubChoosesNoAddress: pages are opened under the address that the user gave. The hub's reply cannot change it.
func TestAHubChoosesNoAddress(t *testing.T) {
	hub := hostileHub(t, http.StatusOK, "application/json",
		`{"code":"0","data":{"name":"b","url":"file:///etc/passwd","ticket":"t&x=\u001b"}}`)
	t.Setenv("COVE_API_KEY", "key")
	out, code := runVerb(t, hub, "", "open", "a/b")
	if want := hub + "/sandbox/a%2Fb/?ticket=t%26x%3D%1B\n"; out != want || code != 0 {
		t.Errorf("got %d %q, want 0 and %q", code, out, want)
	}
}

// TestCompletionTakesPlainNames: completion inserts names into a shell command line, so it offers only plain names.
func TestCompletionTakesPlainNames(t *testing.T) {
	hub := hostileHub(t, http.StatusOK, "application/json",
		`{"code":"0","data":[{"name":"a-1"},{"name":"$(id)"},{"name":"x y"},{"name":"-f"},{"name":"a\n:0"},{"name":"\u001b[2J"}]}`)
	t.Setenv("COVE_URL", hub)
	for _, line := range []string{"__complete exec ", "__complete get ", "__complete cp "} {
		t.Setenv("HOME", t.TempDir())
		var out bytes.Buffer
		cmd, err := Command("0", strings.Split(line, " "), host.Streams{In: strings.NewReader(""), Out: &out, Err: &bytes.Buffer{}})
		if err == nil {
			err = cmd.ExecuteContext(t.Context())
		}
		names, _, _ := strings.Cut(out.String(), "\n:")
		if err != nil || strings.TrimSuffix(names, ":") != "a-1" {
			t.Errorf("%s: got %q, %v, want only a-1", line, out.String(), err)
		}
	}
}

// TestHostileSandboxOfARealHub: a hub stores and returns such texts, and the verbs escape them.
func TestHostileSandboxOfARealHub(t *testing.T) {
	r := newRig(t, nil)
	key, _ := r.key("acme", "user")
	body, err := json.Marshal(map[string]any{"name": "a", "env": map[string]string{"NOTE": hostileText}})
	if err != nil {
		t.Fatal(err)
	}
	r.must(key, "POST", "/api/v1/sandbox", string(body))
	t.Setenv("COVE_API_KEY", key)
	for _, line := range []string{"get a", "get a -o table", "list -o json"} {
		out, code := runVerb(t, r.server.URL, "", strings.Fields(line)...)
		if code != 0 {
			t.Errorf("cove %s: got exit code %d and %q, want 0", line, code, out)
		}
		checkPrinted(t, "cove "+line, out)
	}
}
