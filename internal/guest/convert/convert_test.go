package convert

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"image"
	"image/png"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/document/markdown"
	"github.com/cove-sandbox/cove/internal/guest/internal/document"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// TestMain is also aio-markdown, if called by that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "aio-markdown" {
		os.Exit(markdown.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	testenv.Main(m)
}

// reader returns the path of aio-markdown.
func reader(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	must(t, err)
	path := filepath.Join(t.TempDir(), "aio-markdown")
	must(t, os.Symlink(self, path))
	return path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// venv returns the Python environment of the project.
func venv(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("../../../.venv")
	must(t, err)
	testenv.Need(t, filepath.Join(dir, "bin", "markitdown"))
	return dir
}

func newService(t testing.TB, change ...func(*Config)) *Service {
	t.Helper()
	runner := proc.New(proc.Config{})
	helper := reader(t)
	c := Config{Home: t.TempDir(), Workspace: t.TempDir(), Markdown: func() string { return helper }, Runner: runner}
	for _, f := range change {
		f(&c)
	}
	s := New(c)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, s.Close())
		must(t, runner.Close())
	})
	return s
}

func convert(t testing.TB, s *Service, uri string) string {
	t.Helper()
	text, err := s.Convert(t.Context(), ConvertIn{uri})
	if err != nil {
		t.Fatalf("%.80s: got %v, want no error", uri, err)
	}
	return text
}

// refused checks the code and text of an error.
func refused(t testing.TB, s *Service, uri string, code op.Code, says string) {
	t.Helper()
	_, err := s.Convert(t.Context(), ConvertIn{uri})
	if e, ok := op.AsError(err); !ok || e.Code != code || !strings.Contains(e.Msg, says) {
		t.Errorf("%.80s: %v, want %s and %q", uri, err, code, says)
	}
}

func has(t testing.TB, text string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(text, p) {
			t.Errorf("%q is missing in\n%.3000s", p, text)
		}
	}
}

const report = `---
title: Quarterly report
author: Ada Example
---

# Results

Sales grew by twelve percent.

| Region | Units |
|--------|-------|
| North  | 1200  |
| South  | 950   |

# Outlook

- first point
- second point
`

// documents creates documents with real programs.
func documents(t testing.TB) string {
	t.Helper()
	testenv.Engine(t) // an office, which is large
	testenv.Need(t, "pandoc", "soffice", "pdftotext")
	dir := t.TempDir()
	for name, content := range map[string]string{"report.md": report, "data.csv": "Name,Count\nApples,3\nPears,14\n"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644))
	}
	office := func(to, from string) []string {
		return []string{"soffice", "-env:UserInstallation=file://" + dir + "/" + to, "--headless", "--convert-to", to,
			"--outdir", dir, dir + "/" + from}
	}
	for _, args := range [][]string{
		{"pandoc", dir + "/report.md", "-o", dir + "/report.docx"},
		{"pandoc", dir + "/report.md", "-o", dir + "/report.pptx"},
		office("pdf", "report.docx"),
		office("xlsx", "data.csv"),
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: got %v: %s, want no error", args, err, out)
		}
	}
	return dir
}

func TestRealDocuments(t *testing.T) {
	python, dir := venv(t), documents(t)
	with := newService(t, func(c *Config) { c.Venv = python })
	without := newService(t)
	for name, want := range map[string][]string{
		"report.docx": {"# Results", "Sales grew by twelve percent.", "| Region | Units |", "| North | 1200 |", "second point"},
		"report.pptx": {"Results", "Sales grew by twelve percent.", "| Region | Units |", "| North | 1200 |", "second point"},
		"report.pdf":  {"Results", "Sales grew by twelve percent.", "| Region | Units |", "| North | 1200 |", "- second point"},
		"data.xlsx":   {"Apples", "| Pears | 14 |"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			has(t, convert(t, with, "file://"+dir+"/"+name), want...)
			call := &op.Call{}
			text, err := without.Convert(op.WithCall(t.Context(), call), ConvertIn{dir + "/" + name})
			must(t, err)
			has(t, text, want...)
			has(t, call.Hint, "markitdown", "pip install")

			b, err := os.ReadFile(dir + "/" + name)
			must(t, err)
			bare := filepath.Join(t.TempDir(), "bare") // no name to go by
			must(t, os.WriteFile(bare, b, 0o644))
			has(t, convert(t, without, bare), want...)
			has(t, convert(t, without, "data:application/octet-stream;base64,"+base64.StdEncoding.EncodeToString(b)), want...)
		})
	}
	t.Run("views", func(t *testing.T) {
		t.Parallel()
		v, err := with.View(t.Context(), dir+"/report.pdf", document.Query{Pages: []int{1, 1}, Metadata: true})
		must(t, err)
		has(t, v.Text, "## Page 1 of 1", "Sales grew", "North")
		if v.Metadata["page_count"] != 1 || v.Metadata["file_type"] != "pdf" {
			t.Errorf(`got %v, want page_count 1 and file_type "pdf"`, v.Metadata)
		}
		if _, err := with.View(t.Context(), dir+"/report.pdf", document.Query{Pages: []int{2, 3}}); err == nil {
			t.Error("page out of range: got no error, want one")
		}
		v, err = with.View(t.Context(), dir+"/data.xlsx", document.Query{Rows: []int{2, 2}})
		must(t, err)
		has(t, v.Text, "| 2 | Apples | 3 |")
		if strings.Contains(v.Text, "Pears") {
			t.Errorf(`got %s, want text without "Pears"`, v.Text)
		}
	})
}

func TestDamagedAndMissing(t *testing.T) {
	t.Parallel()
	python := venv(t)
	s := newService(t, func(c *Config) { c.Venv = python })
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/x.docx", []byte("not a document"), 0o644))
	must(t, os.WriteFile(dir+"/y.docx", []byte("PK\x03\x04 broken off"), 0o644))
	for _, name := range []string{"/x.docx", "/y.docx"} {
		refused(t, s, dir+name, op.Invalid, "cannot be converted")
	}
	plain := newService(t, func(c *Config) { c.Venv = "/nowhere" })
	must(t, os.WriteFile(dir+"/x.xls", []byte{0xd0, 0xcf, 0x11, 0xe0}, 0o644))
	refused(t, plain, dir+"/x.xls", op.Unavailable, "pip install")
	slow := newService(t, func(c *Config) { c.Venv, c.Timeout = python, 100*time.Millisecond })
	refused(t, slow, dir+"/x.xls", op.Unavailable, "timed out")
}

func TestDataURIs(t *testing.T) {
	t.Parallel()
	s := newService(t)
	var b bytes.Buffer
	must(t, png.Encode(&b, image.NewGray(image.Rect(0, 0, 4, 3))))
	for _, c := range []struct {
		uri  string
		want []string
	}{
		{"data:,Hello%2C%20World", []string{"Hello, World"}},
		{"data:text/html,<h1>Hi</h1><p>a <b>b</b></p><table><tr><th>x</th></tr><tr><td>1</td></tr></table>",
			[]string{"# Hi", "a **b**", "| x |"}},
		{"data:text/html;charset=utf-8;base64," + base64.StdEncoding.EncodeToString([]byte("<p>größe</p>")), []string{"größe"}},
		{"data:text/html;charset=iso-8859-1,<p>gr%F6%DFe</p>", []string{"größe"}},
		{"data:text/csv,a,b%0A1,2", []string{"| a | b |", "| 1 | 2 |"}},
		{"data:application/json,{\"a\":[1]}", []string{"```json\n{\n  \"a\": [\n    1\n  ]\n}\n```"}},
		{"data:text/plain,%60%60%60", []string{"```"}},
		{"data:image/png;base64," + base64.URLEncoding.EncodeToString(b.Bytes()), []string{"png image, 4 × 3 pixels"}},
		{"DATA:;base64,aGk", []string{"hi"}},
	} {
		has(t, convert(t, s, c.uri), c.want...)
	}
	for _, bad := range []string{"data:nocomma", "data:;base64,***", "data:text/plain,%zz", "data:not a type,x",
		"data:application/octet-stream;base64,AAAB", "data:text/plain,a%00b"} {
		refused(t, s, bad, op.Invalid, "")
	}
}

func TestFiles(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxBytes = 1000; c.MaxText = 50 })
	must(t, os.WriteFile(s.cfg.Workspace+"/a b.md", []byte("# As it is\n"), 0o644))
	must(t, os.WriteFile(s.cfg.Home+"/t.txt", []byte(strings.Repeat("é", 100)), 0o644))
	must(t, os.WriteFile(s.cfg.Workspace+"/big.txt", make([]byte, 2000), 0o644))
	for _, uri := range []string{"file://" + s.cfg.Workspace + "/a%20b.md", "file://localhost" + s.cfg.Workspace +
		"/a%20b.md", s.cfg.Workspace + "/a b.md", "a b.md", " a b.md\n"} {
		has(t, convert(t, s, uri), "# As it is\n")
	}
	if text := convert(t, s, "~/t.txt"); !strings.HasSuffix(text, "é\n\n[truncated]\n") || len(text) > 70 {
		t.Errorf(`got %q, want text that ends with "é\n\n[truncated]\n" and at most 70 bytes`, text)
	}
	refused(t, s, "file:///none", op.NotFound, "none")
	refused(t, s, "file://elsewhere/x", op.Invalid, "elsewhere")
	refused(t, s, "ftp://host/x", op.Invalid, "ftp")
	refused(t, s, "", op.Invalid, "empty")
	refused(t, s, "/dev/zero", op.Invalid, "regular")
	refused(t, s, "big.txt", op.TooLarge, "too large")
	_, err := s.Convert(t.Context(), ConvertIn{"file:///none"})
	if e, _ := op.AsError(err); e.Data == nil {
		t.Error("missing file: want the same error as other file operations")
	}
}

// page serves one response.
func page(t testing.TB, media, body string) *httptest.Server {
	t.Helper()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/missing":
			http.NotFound(w, r)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusFound)
		case "/to":
			http.Redirect(w, r, r.URL.Query().Get("u"), http.StatusFound)
		case "/hang":
			<-r.Context().Done()
		case "/endless":
			for r.Context().Err() == nil {
				if _, err := w.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		default:
			w.Header().Set("Content-Type", media)
			fmt.Fprint(w, body)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func TestWeb(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxBytes = 4 << 20 })
	srv := page(t, "text/html; charset=utf-8",
		`<html><head><title>The page</title></head><body><nav>menu</nav><p>Text with <a href="/link">a `+
			`link</a>.</p><script>evil()</script></body></html>`)
	text := convert(t, s, srv.URL+"/some/page")
	has(t, text, "# The page\n", "Text with [a link]("+srv.URL+"/link).")
	if strings.Contains(text, "evil") {
		t.Errorf(`got %s, want no "evil" in it`, text)
	}
	sentence := "<p>" + strings.Repeat("This is a long sentence of an article, with commas, that somebody wrote. ", 12) + "</p>"
	article := page(t, "text/html",
		"<html><head><title>Story - Site</title></head><body><div class='sidebar'><ul><li><a href='/x'>unrelated "+
			"teaser</a></li></ul></div><article><h1>Story</h1>"+strings.Repeat(sentence, 6)+"</article><footer>imprint</footer></body></html>")
	text = convert(t, s, article.URL)
	has(t, text, "This is a long sentence")
	if strings.Contains(text, "unrelated teaser") {
		t.Errorf("got\n%.500s, want no \"unrelated teaser\" in it", text)
	}
	has(t, convert(t, s, page(t, "text/markdown", "# as it is").URL), "# as it is")
	has(t, convert(t, s, page(t, "application/octet-stream", "a,b\n1,2\n").URL+"/t.csv"), "| a | b |")
	has(t, convert(t, s, srv.URL+"/to?u="+url.QueryEscape(article.URL)), "This is a long sentence")
	refused(t, s, page(t, "text/html", strings.Repeat("<div>", 100_000)).URL, op.Invalid, "cannot be read as HTML")
	refused(t, s, srv.URL+"/missing", op.NotFound, "404")
	refused(t, s, srv.URL+"/loop", op.Unavailable, "redirects")
	refused(t, s, srv.URL+"/to?u=file:///etc/passwd", op.Unavailable, "file")
	refused(t, s, srv.URL+"/endless", op.TooLarge, "too large")
	refused(t, s, "http://127.0.0.1:1/", op.Unavailable, "cannot be fetched")
	refused(t, s, "http:///x", op.Invalid, "cannot be fetched")
	hurried := newService(t, func(c *Config) { c.Timeout = 100 * time.Millisecond })
	refused(t, hurried, srv.URL+"/hang", op.Unavailable, "")
}

// Internal services of the sandbox cannot be reached in any way.
func TestInternalsAreDenied(t *testing.T) {
	t.Parallel()
	var reached atomic.Int32
	secret := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { reached.Add(1) }))
	t.Cleanup(secret.Close)
	port := secret.Listener.Addr().(*net.TCPAddr).Port
	deny := func(ap netip.AddrPort) bool { return ap.Addr().IsLoopback() && int(ap.Port()) == port }
	s := newService(t, func(c *Config) { c.Deny = deny })
	open := page(t, "text/plain", "open")
	has(t, convert(t, s, open.URL), "open")
	proxied := newService(t, func(c *Config) {
		c.Deny = deny
		proxy := proxy(t)
		c.Proxy = func(*http.Request) (*url.URL, error) { return proxy, nil }
	})
	for _, host := range []string{"127.0.0.1", "localhost", "0.0.0.0", "[::ffff:127.0.0.1]", "127.1", "2130706433"} {
		uri := fmt.Sprintf("http://%s:%d/", host, port)
		for name, s := range map[string]*Service{"direct": s, "through the proxy": proxied} {
			if _, err := s.Convert(t.Context(), ConvertIn{uri}); err == nil {
				t.Errorf("%s %s: no failure, want an error", name, uri)
			}
		}
		refused(t, s, open.URL+"/to?u="+url.QueryEscape(uri),
			map[bool]op.Code{true: op.Denied, false: op.Unavailable}[!strings.HasPrefix(host, "2") && host != "127.1"], "")
	}
	if reached.Load() > 0 {
		t.Error("the internal service got a request")
	}
}

// proxy is a proxy that forwards all requests.
func proxy(t testing.TB) *url.URL {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RequestURI = ""
		res, err := tr.RoundTrip(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer res.Body.Close()
		w.Header().Set("Content-Type", res.Header.Get("Content-Type"))
		w.Header().Set("Via", "test")
		w.WriteHeader(res.StatusCode)
		var b bytes.Buffer
		_, _ = b.ReadFrom(res.Body)
		_, _ = w.Write([]byte(strings.ReplaceAll(b.String(), "open", "open through the proxy")))
	}))
	t.Cleanup(srv.Close)
	u, err := url.Parse(srv.URL)
	must(t, err)
	return u
}

func TestProxyIsObeyed(t *testing.T) {
	t.Parallel()
	through := proxy(t)
	s := newService(t, func(c *Config) {
		c.Proxy = func(r *http.Request) (*url.URL, error) {
			if r.URL.Path == "/direct" {
				return nil, nil
			}
			return through, nil
		}
	})
	srv := page(t, "text/plain", "open")
	has(t, convert(t, s, srv.URL), "open through the proxy")
	if text := convert(t, s, srv.URL+"/direct"); text != "open" {
		t.Errorf(`got %q, want "open"`, text)
	}
}

func TestConversionsAreBounded(t *testing.T) {
	t.Parallel()
	s := newService(t, func(c *Config) { c.MaxJobs = 1 })
	s.jobs <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := s.Convert(ctx, ConvertIn{"data:,x"})
	if e, ok := op.AsError(err); !ok || e.Code != op.Unavailable {
		t.Errorf("got %v, want an error with code unavailable", err)
	}
	<-s.jobs
	if text := convert(t, s, "data:,x"); text != "x" {
		t.Errorf(`got %q, want "x"`, text)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "convert-*")); len(left) > 20 {
		t.Errorf("temporary files stay: got %d, want at most 20 entries", len(left))
	}
}

func FuzzDataURI(f *testing.F) {
	for _, u := range []string{",x", "text/html;base64,PGgxPg==", ";charset=utf-16,%00x", "image/png,xx", "text/html,<table><tr><td>"} {
		f.Add(u)
	}
	f.Fuzz(func(t *testing.T, rest string) {
		s := newService(t, func(c *Config) { c.Runner = nil })
		if _, err := s.Convert(t.Context(), ConvertIn{"data:" + rest}); err != nil {
			if _, ok := op.AsError(err); !ok {
				t.Errorf("%q: %v is not safe to show", rest, err)
			}
		}
	})
}
