package activity

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
)

const (
	maxCompared = 256 << 10 // bytes of a file that is compared
	maxDiff     = 8 << 10
	maxContent  = 4 << 10
	around      = 3 // lines before and after a change
)

// Change describes how an operation changed a file.
type Change struct {
	Path    string `json:"path" doc:"Absolute path of the file"`
	Diff    string `json:"diff" doc:"Change as a unified diff; truncated if long, empty if the file is large or binary"`
	Content string `json:"content" doc:"Content after the change; truncated if long"`
	Deleted bool   `json:"deleted" doc:"Whether the file no longer exists"`
}

// changes compares files before and after the operations that write them.
type changes struct{ base pathname.Base }

// version is the state of a file at one time.
type version struct {
	path   string
	exists bool
	text   bool
	data   string
}

// writers are the operations whose files are compared.
var writers = map[string]bool{"file_write": true, "file_replace": true, "file_str_replace_editor": true,
	"file_upload": true, "file_delete": true}

// before returns the file that a call is about to change, or nil.
func (c changes) before(name string, in any) *version {
	if !writers[name] {
		return nil
	}
	v := reflect.Indirect(reflect.ValueOf(in))
	if v.Kind() != reflect.Struct {
		return nil
	}
	for _, field := range []string{"File", "Path"} {
		f := v.FieldByName(field)
		if f.Kind() == reflect.Pointer {
			f = f.Elem()
		}
		if f.Kind() != reflect.String || f.String() == "" {
			continue
		}
		path, err := c.base.Resolve(f.String())
		if err != nil {
			return nil
		}
		return readVersion(path)
	}
	return nil
}

// readVersion reads a file if it is a small text file. It never blocks.
func readVersion(path string) *version {
	v := &version{path: path}
	info, err := os.Stat(path)
	if err != nil {
		return v
	}
	v.exists = true
	if !info.Mode().IsRegular() || info.Size() > maxCompared {
		return v
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return v
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil || !info.Mode().IsRegular() {
		return v
	}
	b, err := io.ReadAll(io.LimitReader(f, maxCompared+1))
	if err == nil && len(b) <= maxCompared && utf8.Valid(b) && !bytes.ContainsRune(b, 0) {
		v.text, v.data = true, string(b)
	}
	return v
}

// compare returns the change since before, or nil, and the current version.
func (c changes) compare(before *version) (*Change, *version) {
	if before == nil {
		return nil, nil
	}
	after := readVersion(before.path)
	return changeOf(before, after), after
}

// changeOf returns the change between two versions, or nil.
func changeOf(before, after *version) *Change {
	if *before == *after && (after.text || !after.exists) {
		return nil
	}
	out := &Change{Path: strings.ToValidUTF8(before.path, "\uFFFD"), Deleted: !after.exists}
	if (before.text || !before.exists) && (after.text || !after.exists) {
		out.Diff = shortenTo(diff(before.data, after.data), maxDiff)
		out.Content = shortenTo(after.data, maxContent)
	}
	return out
}

// diff returns a unified diff with one hunk: all lines between the first and the last one
// that differ. The diff may not be minimal, but requires only one pass over the file.
func diff(before, after string) string {
	a, b := splitLines(before), splitLines(after)
	head := 0
	for head < min(len(a), len(b)) && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(b))-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	from := max(0, head-around)
	rest := min(tail, around)
	deleted, added := a[head:len(a)-tail], b[head:len(b)-tail]
	if len(deleted) == 0 && len(added) == 0 {
		return ""
	}
	var out strings.Builder
	lead := head - from
	fmt.Fprintf(&out, "@@ -%s +%s @@\n", span(from, lead+len(deleted)+rest), span(from, lead+len(added)+rest))
	for _, part := range []struct {
		sign  string
		lines []string
	}{{" ", a[from:head]}, {"-", deleted}, {"+", added}, {" ", a[len(a)-tail:][:rest]}} {
		for _, l := range part.lines {
			out.WriteString(part.sign + l)
			if !strings.HasSuffix(l, "\n") {
				out.WriteString("\n\\ No newline at end of file\n")
			}
			if out.Len() > 2*maxDiff {
				return out.String()
			}
		}
	}
	return out.String()
}

// span formats a range of lines as in a diff: an empty range names the line before it.
func span(from, n int) string {
	if n == 0 {
		return fmt.Sprintf("%d,0", from)
	}
	return fmt.Sprintf("%d,%d", from+1, n)
}

func splitLines(s string) []string {
	return slices.DeleteFunc(strings.SplitAfter(s, "\n"), func(l string) bool { return l == "" })
}
