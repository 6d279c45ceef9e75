package hub

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/auth"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/activity"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
	"github.com/cove-sandbox/cove/internal/hub/internal/secretstore"
	"github.com/cove-sandbox/cove/internal/hub/internal/tenant"
)

// hostileTexts are values of fields, of path segments and of queries.
var hostileTexts = []string{
	"", " ", "none", "a", "-", ".", "..", "../../etc/passwd", "/etc/passwd", "a/b", "a\x00b", "\x00", "\xff\xfe",
	"\n", "a\r\nX: y", "💥", "%00", "%2e%2e%2f",
	"NaN", "-1", "0", "1e400", "99999999999999999999999", "0x10", "true", "null", "*", "?", "$(id)", "'; --",
	"imported/none", "imported/../x", "sha256:0",
	strings.Repeat("x", 10_000), strings.Repeat("a-", 200), "2026-13-45T99:99:99Z", "9223372036854775807",
	"-9223372036854775808", "1Ei", "99999Ei",
}

// hostileJSON are values of fields in a body.
var hostileJSON = []string{
	"null", "true", "[]", "{}", "[[]]", `[null]`, `[1]`, `[""]`, `{"":""}`, `{"a":null}`, `{"a":{"b":1}}`, "0", "-1",
	"1.5", "1e308", "-1e308", "1e-400", "9223372036854775807", "9223372036854775808",
	"-9223372036854775809", `"\u0000"`, `"\ud800"`, `["a\u0000b"]`, `{"a\u0000b":"c"}`, `{"a":"b\u0000c"}`,
	`{"A=B":"x"}`, `{"name":"../x","target":"relative"}`,
	`[{"name":"../x","target":"relative"}]`, `[{"name":"v","target":"/"}]`, `[{"name":"v","target":"/proc"}]`,
	`[{"name":"v","target":"/a\u0000b"}]`, `{"mode":"none"}`, `{"allow":["\u0000"]}`, `{"allow":["*:99999"]}`,
	`{"mode":"allow","allow":["[::1"]}`, `[0]`, `[65536]`, `[-1]`, `["` + strings.Repeat("x", 1000) + `"]`,
}

// hostileBodies are whole bodies.
var hostileBodies = []string{
	"", "null", "[]", "true", "1", `""`, "{", "}", "\x00", "\xff", strings.Repeat("[", 5000),
	`{"a":` + strings.Repeat("[", 5000), `{"name":"x","name":1}`, `{"":1}`,
}

// required returns the required fields of an operation other than the invalid one.
func required(o op.Op) map[string]json.RawMessage {
	all := map[string]json.RawMessage{}
	if o.In == nil || o.In() == nil {
		return all
	}
	for _, f := range o.In().AllFields() {
		switch {
		case f.Source != op.Body || !f.Required:
		case f.Type.Kind == op.String:
			all[f.Name] = json.RawMessage(`"usual"`)
		default:
			all[f.Name] = json.RawMessage("1")
		}
	}
	if o.Name == "key_add" {
		all["role"] = json.RawMessage(`"user"`)
	}
	return all
}

// walker calls operations with invalid input.
type walker struct {
	t      *testing.T
	base   string
	header http.Header
	brief  bool // only some values, even in nightly runs
	turn   int
	hidden []string // texts that no reply may contain
	calls  int
}

// some returns the values to try: all of them in nightly runs, otherwise a few that differ for each
// field.
func (w *walker) some(values []string) []string {
	step := testenv.Times(10, 1)
	if w.brief {
		step = max(step, 3)
	}
	w.turn++
	var out []string
	for i := w.turn % min(step, len(values)); i < len(values); i += step {
		out = append(out, values[i])
	}
	return out
}

// try sends one request and fails if the reply is an internal error of the hub.
func (w *walker) try(what, method, path, kind string, body []byte) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, w.base+path, bytes.NewReader(body))
	if err != nil {
		return // no client can send it
	}
	req.Header = w.header.Clone()
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	res, err := client.Do(req)
	if err != nil {
		w.t.Errorf("%s: %s %.200q: %v", what, method, path, err)
		return
	}
	defer res.Body.Close()
	w.calls++
	text, _ := io.ReadAll(io.LimitReader(res.Body, 2000))
	for _, h := range w.hidden {
		if bytes.Contains(text, []byte(h)) {
			w.t.Errorf("%s: %s %.200q %.200q: got %s, want nothing of %s in it", what, method, path, body, text, h)
		}
	}
	if res.StatusCode == http.StatusInternalServerError || res.StatusCode == 599 {
		w.t.Errorf("%s: %s %.200q %.200q: got %d %s, want an error of the caller", what, method, path, body, res.StatusCode, text)
	}
}

var placeholder = regexp.MustCompile(`{([a-z]+)(\.\.\.)?}`)

// fill puts values into a path: usual has the values of existing objects, one of them is replaced.
func fill(path, name, value string, usual map[string]string) string {
	return placeholder.ReplaceAllStringFunc(path, func(p string) string {
		key := placeholder.FindStringSubmatch(p)[1]
		if key == name {
			return url.PathEscape(value)
		}
		if v, ok := usual[key]; ok {
			return v
		}
		return "none"
	})
}

// walk calls an operation with every invalid value for each field.
func (w *walker) walk(o op.Op, usual map[string]string, valid map[string]json.RawMessage) {
	method, path := o.MethodPath()
	path = strings.TrimSuffix(path, "{$}")
	for _, p := range placeholder.FindAllStringSubmatch(path, -1) {
		for _, v := range w.some(hostileTexts) {
			w.try(o.Name+" path "+p[1], method, fill(path, p[1], v, usual), "application/json", bodyOf(valid))
		}
	}
	to := fill(path, "", "", usual)
	if o.In == nil || o.In() == nil {
		return
	}
	for _, f := range o.In().AllFields() {
		switch f.Source {
		case op.Query:
			for _, v := range w.some(hostileTexts) {
				w.try(o.Name+" query "+f.Name, method, to+"?"+url.Values{f.Name: {v}}.Encode(), "application/json", bodyOf(valid))
			}
		case op.Body:
			for _, v := range w.some(hostileTexts) {
				quoted, err := json.Marshal(v)
				if err == nil {
					w.field(o, method, to, f.Name, quoted, valid)
				}
			}
			for _, v := range w.some(hostileJSON) {
				w.field(o, method, to, f.Name, []byte(v), valid)
			}
			w.field(o, method, to, f.Name, []byte("\"\xff\xfe\""), valid)
		case op.Form:
			for i, archive := range hostileArchives(w.t) {
				kind, body := form(w.t, f.Name, archive)
				w.try(fmt.Sprintf("%s file %d", o.Name, i), method, to, kind, body)
			}
			w.try(o.Name+" no form", method, to, "multipart/form-data; boundary=x", []byte("--x\r\n\r\nnothing"))
		}
	}
	for _, body := range w.some(hostileBodies) {
		for _, kind := range []string{"application/json", "", "text/plain", "multipart/form-data", "a/b; =", "application/json; charset=x"} {
			w.try(o.Name+" body", method, to, kind, []byte(body))
		}
	}
}

func (w *walker) field(o op.Op, method, to, name string, value []byte, valid map[string]json.RawMessage) {
	all := map[string]json.RawMessage{}
	for k, v := range valid {
		all[k] = v
	}
	all[name] = value
	w.try(o.Name+" field "+name, method, to, "application/json", bodyOf(all))
}

// bodyOf writes an object without checking its values.
func bodyOf(fields map[string]json.RawMessage) []byte {
	var b bytes.Buffer
	b.WriteByte('{')
	for k, v := range fields {
		if b.Len() > 1 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, "%q:%s", k, v)
	}
	b.WriteByte('}')
	return b.Bytes()
}

// form is an upload.
func form(t *testing.T, name string, content []byte) (kind string, body []byte) {
	t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	part, err := w.CreateFormFile(name, "a.tar")
	if err != nil {
		t.Fatal(err)
	}
	part.Write(content)
	w.Close()
	return w.FormDataContentType(), b.Bytes()
}

// hostileArchives are files that are not an image, or an invalid one.
func hostileArchives(t *testing.T) [][]byte {
	t.Helper()
	good := dockerArchive(t, layerOf(t, content{name: "f", text: []byte("x")}))
	lie := func(from, to string) []byte { return bytes.ReplaceAll(good, []byte(from), []byte(to)) }
	return [][]byte{
		nil, []byte("junk"), bytes.Repeat([]byte{0}, 10240), good[:len(good)/2], good[:700],
		lie(`"Config":"config.json"`, `"Config":"../../../../"`), lie(`"0.tar"`, `"none!"`), lie(`"0.tar"`, `"/etc/"`[:7]),
		lie(`linux`, `other`), lie(`sha256:`, `sha512:`), lie(`diff_ids`, `diff_idx`), lie(`"type":"layers"`, `"type":12345678`),
		dockerArchive(t, layerOf(t, content{name: "../../escape", text: []byte("x")})),
		dockerArchive(t, layerOf(t, content{name: "a", text: []byte("x")}, content{name: "a/b", text: []byte("x")})),
		dockerArchive(t, layerOf(t, content{name: strings.Repeat("d/", 300) + "f", text: []byte("x")})),
		dockerArchive(t, layerOf(t, content{name: strings.Repeat("n", 300), text: []byte("x")})),
		dockerArchive(t, layerOf(t, content{name: ".wh..", text: nil})),
		dockerArchive(t),
	}
}

// fullStores are all stores of a hub with keys.
func fullStores(t *testing.T) stores {
	t.Helper()
	dir := t.TempDir()
	s := stores{scratch: filepath.Join(dir, "import"), auditDir: filepath.Join(dir, "audit")}
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	s.scratch = t.TempDir()
	s.tenants, err = tenant.Open(tenant.Config{Path: filepath.Join(dir, "keys.json")})
	check()
	s.secrets, err = secretstore.Open(secretstore.Config{Dir: filepath.Join(dir, "secrets")})
	check()
	s.audit, err = auditlog.Open(auditlog.Config{Dir: s.auditDir})
	check()
	t.Cleanup(func() { s.audit.Close() })
	s.records = activity.New(activity.Config{Dir: filepath.Join(dir, "records"), Keep: time.Hour})
	return s
}

// TestInvalidInputIsNeverAnInternalError: no input of a caller results in an internal error.
func TestInvalidInputIsNeverAnInternalError(t *testing.T) {
	t.Parallel()
	r := newRig(t, setup{image: true, stores: fullStores(t), auth: &auth.Config{Token: "secret"}})
	key := []string{"Authorization", "Bearer secret"}
	name := r.create(`{"name":"a","timeout":-1}`, key...).Name
	usual := map[string]string{"name": name, "id": name, "path": "x"}
	w := &walker{t: t, base: r.server.URL, header: http.Header{key[0]: key[1:]}}
	for _, o := range op.NewTable(r.hub.Ops()).All() {
		if o.Stream != nil || o.Name == "sandbox_delete" || o.Name == "e2b_kill" {
			continue // deletes objects that other operations need, or never ends
		}
		w.walk(o, usual, required(o))
		r.do("POST", "/api/v1/sandbox", `{"name":"a","timeout":-1}`, key...) // unless it still exists
		r.sweep("a", key...)
	}
	t.Logf("%d calls", w.calls)
}

// TestInvalidInputOnLocalProvider: the same for the local provider.
func TestInvalidInputOnLocalProvider(t *testing.T) {
	m := newQuotaMachine(t, 1<<40)
	full := fullStores(t)
	full.quota = m.stores().quota
	full.tenants = nil
	m.stores = func() stores { return full }
	m.start()
	defer m.clean()
	name := m.create(`{"name":"a","timeout":-1}`).Name
	usual := map[string]string{"name": name, "id": name, "path": "x"}
	w := &walker{t: t, base: m.server.URL, header: http.Header{}, brief: true, hidden: []string{m.cfg.Dir, full.scratch, full.auditDir}}
	for _, o := range op.NewTable(m.hub.Ops()).All() {
		if o.Stream != nil || o.Name == "sandbox_delete" || o.Name == "e2b_kill" || o.Name == "e2b_create" {
			continue
		}
		w.walk(o, usual, required(o))
		m.do("POST", "/api/v1/sandbox", `{"name":"a","timeout":-1}`)
		m.sweep("a")
	}
	for _, image := range []string{"debian:12", "127.0.0.1:1/x:1", "localhost:1/x:1", "registry.invalid/x:1",
		"tar:/etc/passwd", "oci:/etc", "Not A Ref", "x@sha256:0", "[::1]:1/x", "imported.invalid/x"} {
		a := m.do("POST", "/api/v1/sandbox", fmt.Sprintf(`{"name":"i","image":%q}`, image))
		if a.Status < 400 || a.Status == 500 || a.Error == "" {
			t.Errorf("image %s: got %d %s, want a reason", image, a.Status, a.Body)
		}
		t.Logf("image %s: %d %s", image, a.Status, a.Error)
	}
	t.Logf("%d calls", w.calls)
}

// sweep deletes all sandboxes but one.
func (r *rig) sweep(but string, header ...string) {
	var list []struct{ Name string }
	if json.Unmarshal(r.do("GET", "/api/v1/sandbox", "", header...).Data, &list) != nil {
		return
	}
	for _, sb := range list {
		if sb.Name != but {
			r.do("DELETE", "/api/v1/sandbox/"+url.PathEscape(sb.Name), "", header...)
		}
	}
}
