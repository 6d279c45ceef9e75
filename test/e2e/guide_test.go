package e2e

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/dev/guide"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Every code block of the guide runs, in the order of the text, with one sandbox and one hub,
// and prints the documented output.
func TestGuide(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "go", "curl", "chromium", "Xtigervnc", "git")
	blocks, err := guide.Blocks(os.DirFS("../../docs"))
	if err != nil {
		t.Fatal(err)
	}
	r := newReader(t, blocks)
	ran := map[string]int{}
	for _, b := range blocks {
		if b.Skip != "" {
			t.Logf("docs/%s: not run: %s", b, b.Skip)
			continue
		}
		if b.Chapter == "guide/templates.md" && os.Geteuid() != 0 {
			t.Logf("docs/%s: not run: builds need root", b)
			continue
		}
		r.check(t, b)
		ran[b.Language]++
	}
	t.Logf("ran %v", ran)
	for language, least := range map[string]int{"bash": 20, "python": 10, "typescript": 8, "go": 8, "json": 2} {
		if ran[language] < least {
			t.Errorf("got %d executed blocks in %s, want at least %d", ran[language], language, least)
		}
	}
}

// TestGuideInOneLanguage reads each chapter once for each of its languages, with a new sandbox: it runs only the tabs of that
// language. Where a group of tabs lacks it, the page shows the first tab.
func TestGuideInOneLanguage(t *testing.T) {
	testenv.Long(t)
	testenv.Need(t, "go", "curl", "chromium", "Xtigervnc", "git")
	blocks, err := guide.Blocks(os.DirFS("../../docs"))
	if err != nil {
		t.Fatal(err)
	}
	r, ran := newReader(t, blocks), 0
	for _, chapter := range chapters(blocks) { // the first has the file that the others import
		for _, language := range chapter.languages() {
			ran++
			t.Run(strings.TrimSuffix(chapter[0][0].Chapter, ".md")+"/"+language, func(t *testing.T) {
				r.restart(t)
				for _, group := range chapter {
					i := slices.IndexFunc(group, func(b guide.Block) bool { return b.Title() == language })
					r.check(t, group[max(i, 0)])
				}
			})
		}
	}
	if ran < 30 {
		t.Errorf("got %d chapters in one language, want at least 30", ran)
	}
}

// groupedChapter is the executed blocks of a chapter, by group.
type groupedChapter [][]guide.Block

func chapters(blocks []guide.Block) (list []groupedChapter) {
	var last guide.Block
	for _, b := range blocks {
		if b.Skip != "" {
			continue
		}
		if b.Chapter != last.Chapter {
			list = append(list, nil)
		}
		c := &list[len(list)-1]
		if b.Chapter != last.Chapter || b.Group != last.Group {
			*c = append(*c, nil)
		}
		(*c)[len(*c)-1] = append((*c)[len(*c)-1], b)
		last = b
	}
	return list
}

// languages returns the titles of the chapter's tabs.
func (c groupedChapter) languages() (list []string) {
	for _, group := range c {
		for _, b := range group {
			if len(group) > 1 && !slices.Contains(list, b.Title()) {
				list = append(list, b.Title())
			}
		}
	}
	return list
}

// check runs a block and compares its output with what the guide shows.
func (r *reader) check(t *testing.T, b guide.Block) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	begun := time.Now()
	out, err := r.run(ctx, b)
	t.Logf("docs/%s: %s, %v", b, b.Title(), time.Since(begun).Round(time.Millisecond))
	if err != nil {
		t.Errorf("docs/%s: got error %v and %s", b, err, out)
		return
	}
	for _, want := range b.Wants() {
		if !strings.Contains(out, r.address.Replace(want)) {
			t.Errorf("docs/%s: got %q, want %q", b, out, want)
		}
	}
}

// restart replaces the sandbox with a new one at the same address, and removes the sandboxes of the hub.
func (r *reader) restart(t *testing.T) {
	t.Helper()
	if r.box != nil {
		r.box.stop(t)
	}
	home, err := os.MkdirTemp(r.homes, "")
	if err != nil {
		t.Fatal(err)
	}
	r.box = launch(t, aio, []string{"serve", "--listen", r.listen, "--log-level", "warn"}, home, []string{"AIO_VENV=" + r.venv})
	r.hub.clear(t)
}

// reader follows the guide.
type reader struct {
	box     *server // at listen
	listen  string
	homes   string // folder of the home folders of sandboxes
	venv    string
	hub     *hub
	dir     string // where commands run
	env     []string
	address *strings.Replacer // replaces addresses of the guide with those of this test
	python  map[string]*session
	node    *session
	goMain  string // folder of the Go programs
	built   func() error
	failed  error // of the compiler
}

func newReader(t *testing.T, blocks []guide.Block) *reader {
	t.Helper()
	venv, err := filepath.EvalSymlinks("../../.venv")
	if err != nil {
		testenv.Lack(t, "no .venv: run make deps")
	}
	if venv, err = filepath.Abs(venv); err != nil {
		t.Fatal(err)
	}
	h, listen := serveHub(t), fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	r := &reader{dir: t.TempDir(), homes: t.TempDir(), venv: venv, hub: h, listen: listen, python: map[string]*session{},
		address: strings.NewReplacer("localhost:8080", listen, "localhost:10000", h.addr(), "127.0.0.1:10000", h.addr(),
			"8765", fmt.Sprint(testenv.FreePort(t)), "8766", fmt.Sprint(testenv.FreePort(t)), "8767", fmt.Sprint(testenv.FreePort(t)))}
	r.restart(t)
	t.Cleanup(func() { r.box.stop(t) })
	r.env = append(environment(r.dir, h.env), "AIO_API_URL=http://"+listen, "COVE_STATE="+h.State, "E2B_API_URL="+h.URL,
		"E2B_SANDBOX_URL="+h.URL, "E2B_API_KEY=e2b_"+strings.Repeat("0", 40))
	r.env[0] = "PATH=" + filepath.Dir(cove) + ":" + os.Getenv("PATH")
	for name, at := range map[string]string{"": "../sdk/.venv/bin/python", "e2b": "../e2b/.venv-1/bin/python"} {
		r.python[name] = r.begin(t, testenv.NeedFile(t, at), "guide/run.py")
	}
	r.node = r.begin(t, testenv.NeedFile(t, "../mcp/node_modules/.bin/node"), "guide/run.mjs")
	r.build(t, blocks)
	return r
}

// session is a program that runs several blocks, which saves its start time for each block.
type session struct {
	in  io.Writer
	out *bufio.Scanner
}

func (r *reader) begin(t *testing.T, program, script string) *session {
	t.Helper()
	script, err := filepath.Abs(script)
	if err != nil {
		t.Fatal(err)
	}
	if program, err = filepath.Abs(program); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 5*patience) // the session ends at the end of its input
	cmd := exec.CommandContext(ctx, program, script)
	cmd.Dir, cmd.Env = r.dir, r.env
	var errs output
	cmd.Stderr = &errs
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer cancel()
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("%s: got error %v and %s", script, err, &errs)
		}
	})
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	return &session{in, lines}
}

func (s *session) run(b guide.Block, code string) (string, error) {
	line, err := json.Marshal(map[string]string{"name": b.String(), "code": code})
	if err != nil {
		return "", err
	}
	if _, err := s.in.Write(append(line, '\n')); err != nil {
		return "", err
	}
	if !s.out.Scan() {
		return "", errors.Join(s.out.Err(), io.ErrUnexpectedEOF)
	}
	var reply struct{ Out, Error string }
	if err := json.Unmarshal(s.out.Bytes(), &reply); err != nil {
		return s.out.Text(), err
	}
	if reply.Error != "" {
		return reply.Out, errors.New(reply.Error)
	}
	return reply.Out, nil
}

func (r *reader) run(ctx context.Context, b guide.Block) (string, error) {
	code := r.address.Replace(b.Code)
	var cmd *exec.Cmd
	switch b.Language {
	case "bash":
		cmd = exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", code)
	case "python":
		return r.python[b.With].run(b, code)
	case "typescript":
		return r.node.run(b, code)
	case "go":
		if err := r.built(); err != nil {
			return "", err
		}
		if strings.HasPrefix(code, "package main\n") {
			cmd = exec.CommandContext(ctx, r.goMain+"/whole")
		} else {
			cmd = exec.CommandContext(ctx, r.goMain+"/parts", b.String())
		}
	case "json":
		return "", json.Unmarshal([]byte(code), new(any))
	case "yaml":
		if !strings.HasPrefix(code, "# /etc/cove/config.yaml\n") {
			return "", yaml.Unmarshal([]byte(code), new(any))
		}
		settings := filepath.Join(r.dir, "config.yaml")
		if err := os.WriteFile(settings, []byte(code), 0o600); err != nil {
			return "", err
		}
		cmd = exec.CommandContext(ctx, cove, "config", "--config", settings) // rejects unknown settings
	default:
		return "", fmt.Errorf("unknown language %q: say why it is not run (skip: …)", b.Language)
	}
	cmd.Dir, cmd.Env = r.dir, r.env
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, &errs)
	}
	return out.String(), nil
}

// imports of the Go blocks, by package name.
var imports = map[string]string{"bytes": "bytes", "io": "io", "os": "os", "strings": "strings", "time": "time",
	"sync": "sync", "json": "encoding/json"}

// build compiles the Go blocks: complete programs, and function bodies with a context, a hub and a
// sandbox, which the first complete program creates.
func (r *reader) build(t *testing.T, blocks []guide.Block) {
	t.Helper()
	r.goMain = t.TempDir()
	var bodies strings.Builder
	wholes := 0
	for _, b := range blocks {
		if b.Language != "go" || b.Skip != "" {
			continue
		}
		code := r.address.Replace(b.Code)
		if strings.HasPrefix(code, "package main\n") {
			if wholes++; wholes > 1 {
				t.Fatalf("docs/%s: a second complete Go program: write only the function body", b)
			}
			writeFile(t, r.goMain+"/whole.go", code)
			continue
		}
		fmt.Fprintf(&bodies, "case %q:\n%s\n", b.String(), code)
	}
	used := "import (\n\"context\"\n\"fmt\"\n\"log\"\n\"github.com/cove-sandbox/cove/client\"\n"
	if !strings.Contains(bodies.String(), "os.") {
		used += "\"os\"\n"
	}
	for name, path := range imports {
		if regexp.MustCompile(`\b` + name + `\.[A-Z]`).MatchString(bodies.String()) {
			used += fmt.Sprintf("%q\n", path)
		}
	}
	at := func(address string) string { return "http://" + r.address.Replace(address) }
	writeFile(t, r.goMain+"/parts.go", "package main\n"+used+
		")\nfunc run(ctx context.Context, hub *client.Client, box *client.Guest) error {\nswitch os.Args[1] {\n"+
		bodies.String()+"}\nreturn nil\n}\n"+
		fmt.Sprintf("func main() {\nhub, err := client.New(client.Config{URL: %q})\nif err != nil { log.Fatal(err) "+
			"}\nbox, err := client.NewGuest(client.Config{URL: %q})\nif err != nil { log.Fatal(err) }\n",
			at("localhost:10000"), at("localhost:8080"))+
		"if err := run(context.Background(), hub, box); err != nil { log.Fatal(err) }\nfmt.Print()\n}\n")
	done := make(chan struct{})
	r.built = sync.OnceValue(func() error { <-done; return r.failed })
	t.Cleanup(func() { <-done })
	go func() { // concurrent with other blocks
		defer close(done)
		for _, name := range []string{"whole", "parts"} {
			cmd := exec.Command("go", "build", "-o", r.goMain+"/"+name, r.goMain+"/"+name+".go")
			cmd.Dir = "../.."
			if out, err := cmd.CombinedOutput(); err != nil {
				r.failed = fmt.Errorf("compile the blocks in Go: %w: %s", err, out)
				return
			}
		}
	}()
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
