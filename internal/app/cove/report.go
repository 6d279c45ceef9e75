//go:build linux

package cove

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Limits of a report.
const (
	reportLog     = 4 << 20 // of a log, from its end
	reportEntries = 2000    // of the state folder
	reportWait    = 20 * time.Second
)

func (v machineVerbs) bugReport(version string, t *login.Target) *cobra.Command {
	cmd := &cobra.Command{Use: "bug-report [FILE]", Short: "Collect what is needed to find a fault, without secrets",
		Args: cli.Arguments(0, 1),
		Long: "Write versions, settings, the findings of doctor, the state of the hub, its metrics, the end of its " +
			"log and the sizes of its files to an archive of text files. " +
			"Keys, tokens, passwords and secret settings are replaced by [hidden]; contents of sandboxes and " +
			"secrets are not read. Read it before you pass it on: names of sandboxes and addresses are in it."}
	return withSettings(cmd, reportSettings, func(ctx context.Context, cfg config.Cove, args []string) error {
		file := "cove-bug-report-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
		if len(args) > 0 {
			file = args[0]
		}
		environ := config.Environ()
		runner := proc.New(proc.Config{Env: environ})
		defer runner.Close()
		r := &bundle{ctx: ctx, cfg: cfg, runner: runner, environ: environ, std: v.Std}
		r.hidden = newScrubber(cfg, environ, t)
		r.add("version.txt", func(w *bytes.Buffer) error { return printBuild(w, version) })
		r.add("machine.txt", r.describeMachine)
		r.add("doctor.txt", func(w *bytes.Buffer) error {
			_, list := examine(ctx, cfg, environ, func(add adder) bool { return tryProvider(ctx, cfg, add) })
			printFindings(w, list)
			return nil
		})
		r.add("settings.txt", func(w *bytes.Buffer) error { return printSettings(w, cmd) })
		r.add("state.txt", r.listState)
		r.add("log.txt", r.copyLog)
		r.addHub(v.Verbs)
		if err := atomicfile.Replace(file, atomicfile.Options{Perm: 0o600}, func(f *os.File) error { return r.write(f) }); err != nil {
			return err
		}
		fmt.Fprintln(v.Std.Out, file)
		return nil
	})
}

// bundle is what a bug report consists of.
type bundle struct {
	ctx     context.Context
	cfg     config.Cove
	runner  *proc.Runner
	environ []string
	std     host.Streams
	hidden  *scrubber
	files   []bundleFile
}

type bundleFile struct {
	name string
	text []byte
}

// add adds a file. Failures are noted in the file.
func (r *bundle) add(name string, fill func(*bytes.Buffer) error) {
	var b bytes.Buffer
	if err := fill(&b); err != nil {
		fmt.Fprintf(&b, "not available: %v\n", err)
	}
	r.files = append(r.files, bundleFile{name, r.hidden.scrub(b.Bytes())})
}

func (r *bundle) write(w io.Writer) error {
	z := gzip.NewWriter(w)
	t := tar.NewWriter(z)
	for _, f := range r.files {
		h := &tar.Header{Name: "cove-bug-report/" + f.name, Mode: 0o600, Size: int64(len(f.text)), ModTime: time.Now()}
		if err := t.WriteHeader(h); err != nil {
			return err
		}
		if _, err := t.Write(f.text); err != nil {
			return err
		}
	}
	return errors.Join(t.Close(), z.Close())
}

func printBuild(w io.Writer, version string) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(host.ReadBuild(version))
}

// printSettings prints the settings as cove config does, which hides secrets.
func printSettings(w io.Writer, cmd *cobra.Command) error {
	show := host.Config("cove", &config.Cove{}, host.Streams{Out: w, Err: w})
	for _, name := range []string{"state", "config"} {
		if f := cmd.Flags().Lookup(name); f != nil && f.Changed {
			if err := show.Flags().Set(name, f.Value.String()); err != nil {
				return err
			}
		}
	}
	return show.RunE(show, nil)
}

func (r *bundle) describeMachine(w *bytes.Buffer) error {
	for _, file := range []string{"/proc/version", "/etc/os-release", "/proc/loadavg", "/proc/meminfo",
		"/proc/self/cgroup", "/proc/filesystems", "/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io"} {
		b, err := os.ReadFile(file)
		if err != nil {
			b = []byte("not available: " + err.Error())
		}
		fmt.Fprintf(w, "== %s\n%s\n", file, bytes.TrimSpace(b))
	}
	for _, words := range [][]string{{"df", "-h", r.cfg.State}, {"df", "-i", r.cfg.State}, {"nproc"},
		{"systemctl", "status", "cove", "--no-pager", "-n", "0"}} {
		fmt.Fprintf(w, "== %s\n", strings.Join(words, " "))
		r.run(w, words...)
	}
	return nil
}

// run adds the output of a program, for a while.
func (r *bundle) run(w io.Writer, words ...string) {
	path, ok := r.runner.Look(words[0])
	if !ok {
		fmt.Fprintf(w, "not available: %s is not installed\n", words[0])
		return
	}
	ctx, cancel := context.WithTimeout(r.ctx, reportWait)
	defer cancel()
	res, err := r.runner.Run(ctx, proc.Command{Path: path, Args: words[1:], Dir: "/"})
	fmt.Fprintf(w, "%s%s", res.Stdout, res.Stderr)
	if err != nil {
		fmt.Fprintln(w, "not available:", err)
	}
}

// listState lists names, modes and sizes of what the hub keeps, not what sandboxes do.
func (r *bundle) listState(w *bytes.Buffer) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	left := reportEntries
	err := filepath.WalkDir(r.cfg.State, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			fmt.Fprintf(tw, "%s\t%v\n", path, err)
			return nil
		}
		if left--; left < 0 {
			fmt.Fprintln(tw, "…")
			return fs.SkipAll
		}
		rel, _ := filepath.Rel(r.cfg.State, path)
		if info, err := e.Info(); err == nil {
			fmt.Fprintf(tw, "%s\t%d\t%s\t%s\n", info.Mode(), info.Size(), info.ModTime().UTC().Format(time.RFC3339), rel)
		}
		if e.IsDir() && (strings.Count(rel, "/") > 0 || slices.Contains([]string{"disk", "base", "images", "venv"}, rel)) {
			return fs.SkipDir
		}
		return nil
	})
	return errors.Join(err, tw.Flush())
}

// copyLog copies the end of the hub's log: of its file, or from systemd's journal.
func (r *bundle) copyLog(w *bytes.Buffer) error {
	if r.cfg.LogFile == "" {
		r.run(w, "journalctl", "-u", "cove", "-n", "5000", "--no-pager", "-o", "short-iso")
		return nil
	}
	f, err := os.Open(r.cfg.LogFile)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > reportLog {
		if _, err := f.Seek(-reportLog, io.SeekEnd); err != nil {
			return err
		}
	}
	_, err = io.Copy(w, io.LimitReader(f, reportLog))
	return err
}

// addHub adds what the running hub says about itself.
func (r *bundle) addHub(v *verb.Verbs) {
	for _, f := range []struct{ name, path string }{{"hub.json", "/api/v1/hub"}, {"ready.json", "/readyz"},
		{"sandboxes.json", "/api/v1/sandbox"}, {"metrics.txt", ""}} {
		r.add(f.name, func(w *bytes.Buffer) error {
			c, err := v.Dial()
			if err != nil {
				return err
			}
			defer c.Close()
			ctx, cancel := context.WithTimeout(r.ctx, reportWait)
			defer cancel()
			var b json.RawMessage
			if f.path == "" {
				b, err = c.Metrics(ctx)
			} else if err = c.Call(ctx, "GET", f.path, nil, &b); err == nil {
				err = json.Indent(w, b, "", "  ")
				b = nil
			}
			w.Write(b)
			return v.Explain(err)
		})
	}
}

// scrubber hides secrets in texts.
type scrubber struct{ known []string }

// secretName matches names of variables whose values are hidden.
var secretName = regexp.MustCompile(`(?i)key|token|secret|passw|credential|auth|cookie`)

// newScrubber knows the secrets of this machine's hub and its command line.
func newScrubber(cfg config.Cove, environ []string, t *login.Target) *scrubber {
	s := &scrubber{}
	s.know(cfg.APIKey, cfg.AuthToken, t.Settings.Key, t.Settings.Token)
	for _, headers := range []map[string]string{cfg.OTLPHeaders, cfg.AuditForwardHeaders} {
		s.know(slices.Collect(maps.Values(headers))...)
	}
	for _, pair := range environ {
		if name, value, _ := strings.Cut(pair, "="); secretName.MatchString(name) {
			s.know(value)
		}
	}
	if saved, err := t.Saved(); err == nil {
		for _, c := range saved {
			s.know(c.Key, c.Token)
		}
	}
	for _, file := range []string{filepath.Join(cfg.State, login.KeyFile), cfg.AuditKeyFile} {
		if b, err := os.ReadFile(file); err == nil {
			s.know(string(b))
		}
	}
	// Longest first, so that no secret is hidden only in part.
	slices.SortFunc(s.known, func(a, b string) int { return len(b) - len(a) })
	return s
}

// know adds values to hide, except those that are too short to be secrets.
func (s *scrubber) know(values ...string) {
	for _, v := range values {
		if v = strings.TrimSpace(v); len(v) >= 6 {
			s.known = append(s.known, v)
		}
	}
}

const hiddenMark = "[hidden]"

// Secrets by their form: keys and links of hubs, bearer tokens, keys and passwords in URLs, headers and
// assignments, JSON Web Tokens, private keys.
var secretForms = []struct {
	form *regexp.Regexp
	to   string
}{
	{regexp.MustCompile(`\b(?:cove|covs|e2b)_[A-Za-z0-9_\-]{16,}`), hiddenMark},
	{regexp.MustCompile(`\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+\.?[A-Za-z0-9_\-]*`), hiddenMark},
	{regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----`), hiddenMark},
	{regexp.MustCompile(`(?i)\b(bearer|basic)\s+[A-Za-z0-9+/._~=\-]{4,}`), "$1 " + hiddenMark},
	{regexp.MustCompile(`([a-z][a-z0-9+.\-]*://)[^/\s:@"']+:[^/\s@"']+@`), "${1}" + hiddenMark + "@"},
	{regexp.MustCompile(`(?i)\b([A-Za-z0-9_\-]*(?:ticket|token|api[_\-]?key|secret|passw(?:or)?d|pass|cookie|authorization)` +
		`"?\s*[=:]\s*"?)([^\s"&,;}]{4,})`), "${1}" + hiddenMark},
}

func (s *scrubber) scrub(text []byte) []byte {
	for _, k := range s.known {
		text = bytes.ReplaceAll(text, []byte(k), []byte(hiddenMark))
	}
	for _, f := range secretForms {
		text = f.form.ReplaceAll(text, []byte(f.to))
	}
	return text
}
