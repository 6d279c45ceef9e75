package file

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cove-sandbox/cove/internal/guest/file/internal/tree"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

func (s *sandbox) tree() {
	s.put(map[string]string{
		"a.py": "import os\n", "b.txt": "hello\n", ".env": "KEY=1\n", "README.md": "# read\n",
		"src/main.py": "def main():\n    pass\n", "src/util/deep.py": "x = 1\n", "src/.hidden/h.py": "h\n",
		"src/data.json": "{}", "node_modules/m/index.js": "x\n",
	})
}

func rels(s *sandbox, paths []string) []string {
	out := []string{}
	for _, p := range paths {
		rel, err := filepath.Rel(s.dir, p)
		must(s.t, err)
		out = append(out, rel)
	}
	return out
}

func TestGlobAndFind(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.tree()
	must(t, os.Symlink("..", s.dir+"/src/up"))
	for _, c := range []struct {
		in   args
		want []string
	}{
		{args{"pattern": "*.py"}, []string{"a.py"}},
		{args{"pattern": "**/*.py"}, []string{"a.py", "src/main.py", "src/util/deep.py"}},
		{args{"pattern": "**/*.py", "include_hidden": true}, []string{"a.py", "src/.hidden/h.py", "src/main.py", "src/util/deep.py"}},
		{args{"pattern": "**/.hidden/*"}, []string{"src/.hidden/h.py"}},
		{args{"pattern": ".env"}, []string{".env"}},
		{args{"pattern": "*.{py,txt}"}, []string{"a.py", "b.txt"}},
		{args{"pattern": "src/*.py"}, []string{"src/main.py"}},
		{args{"pattern": "src/*", "files_only": false}, []string{"src/data.json", "src/main.py", "src/up", "src/util"}},
		{args{"pattern": "**/*", "exclude": []string{"node_modules", "*.json", "src/util"}},
			[]string{"README.md", "a.py", "b.txt", "src/main.py"}},
		{args{"pattern": "src/**/*.py", "exclude": []string{"src/util/*"}}, []string{"src/main.py"}},
		{args{"pattern": "**/*.py", "sort_desc": true}, []string{"src/util/deep.py", "src/main.py", "a.py"}},
		{args{"pattern": "**/*.py", "sort_by": "name"}, []string{"a.py", "src/util/deep.py", "src/main.py"}},
		{args{"pattern": "**/*.py", "sort_by": "size"}, []string{"src/util/deep.py", "a.py", "src/main.py"}},
		{args{"pattern": "**/*.py", "sort_by": "colour"}, []string{"a.py", "src/main.py", "src/util/deep.py"}},
		{args{"pattern": s.dir + "/src/*.json"}, []string{"src/data.json"}},
		{args{"pattern": "[ab].*"}, []string{"a.py", "b.txt"}},
		{args{"pattern": "nowhere/*.py"}, []string{}},
	} {
		c.in["path"] = s.dir
		out := want[tree.GlobOut](s, "file_glob", c.in)
		var paths []string
		for _, f := range out.Files {
			paths = append(paths, f.Path)
		}
		if got := rels(s, paths); !cmp.Equal(got, c.want) || out.TotalCount != len(c.want) || out.Truncated {
			t.Errorf("%v: %q, total %d, want %q", c.in, got, out.TotalCount, c.want)
		}
	}
	out := want[tree.GlobOut](s, "file_glob", args{"path": s.dir, "pattern": "**/*", "max_results": 2})
	if len(out.Files) != 2 || !out.Truncated || out.TotalCount != 7 || out.Files[0].Name != "README.md" ||
		*out.Files[0].Size != 7 || out.Files[0].ModifiedTime == nil {
		t.Errorf("%+v", out)
	}
	if out := want[tree.GlobOut](s, "file_glob", args{"path": s.dir, "pattern": "a.py",
		"include_metadata": false}); out.Files[0].Size != nil || out.Files[0].ModifiedTime != nil {
		t.Errorf("got %+v, want no first size and no first modified time", out)
	}
	found := want[tree.FindOut](s, "file_find", args{"path": s.dir, "glob": "src*"})
	if !cmp.Equal(rels(s, found.Files), []string{"src"}) {
		t.Errorf(`got %+v, want only "src"`, found)
	}
	_, err := do[tree.GlobOut](s, "file_glob", args{"path": s.dir, "pattern": "[a"})
	fails(t, err, pyerr.Path, "ValueError")
	_, err = do[tree.FindOut](s, "file_find", args{"path": "missing", "glob": "*"})
	fails(t, err, pyerr.NotFound, "FileNotFoundError")
	_, err = do[tree.GlobOut](s, "file_glob", args{"path": "a.py", "pattern": "*"})
	fails(t, err, pyerr.Target, "NotADirectoryError")
}

func TestList(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.tree()
	old := time.Date(2001, 2, 3, 4, 5, 6, 0, time.UTC)
	must(t, os.Chtimes(s.dir+"/b.txt", old, old))
	for _, c := range []struct {
		in   args
		want []string
	}{
		{args{}, []string{".env", "README.md", "a.py", "b.txt", "node_modules", "src"}},
		{args{"show_hidden": false}, []string{"README.md", "a.py", "b.txt", "node_modules", "src"}},
		{args{"show_hidden": false, "file_types": []string{".py", "MD"}}, []string{"README.md", "a.py", "node_modules", "src"}},
		{args{"sort_desc": true, "show_hidden": false}, []string{"src", "node_modules", "b.txt", "a.py", "README.md"}},
		{args{"sort_by": "modified", "show_hidden": false, "file_types": []string{"txt", "py"}, "sort_desc": false}, nil},
		{args{"sort_by": "type", "show_hidden": false}, []string{"node_modules", "src", "README.md", "a.py", "b.txt"}},
		{args{"recursive": true, "show_hidden": false, "sort_by": "path", "file_types": []string{"py"}},
			[]string{"a.py", "node_modules", "node_modules/m", "src", "src/main.py", "src/util", "src/util/deep.py"}},
		{args{"recursive": true, "max_depth": 2, "show_hidden": false, "sort_by": "path",
			"file_types": []string{"py"}}, []string{"a.py", "node_modules", "node_modules/m", "src", "src/main.py", "src/util"}},
	} {
		c.in["path"] = "."
		out := want[tree.ListOut](s, "file_list", c.in)
		var paths []string
		for _, f := range out.Files {
			paths = append(paths, f.Path)
		}
		if got := rels(s, paths); c.want != nil && !cmp.Equal(got, c.want) {
			t.Errorf("%v: got difference %s, want none", c.in, cmp.Diff(c.want, got))
		}
		if out.TotalCount != out.FileCount+out.DirectoryCount || out.TotalCount != len(out.Files) {
			t.Errorf("%v: got %d entries and counts %d, %d and %d, want the first count for the entries and as the sum of the others",
				c.in, len(out.Files), out.TotalCount, out.FileCount, out.DirectoryCount)
		}
		if c.want == nil && paths[0] != s.dir+"/b.txt" {
			t.Errorf(`by time: got %q, want "b.txt" first`, paths)
		}
	}
	out := want[tree.ListOut](s, "file_list", args{"path": ".", "include_permissions": true, "include_size": false})
	for _, f := range out.Files {
		switch f.Name {
		case "b.txt":
			if f.Size != nil || *f.Permissions != "-rw-r--r--" || *f.Extension != ".txt" || *f.ModifiedTime != "2001-02-03T04:05:06Z" {
				t.Errorf(`got %+v, want no size, permissions "-rw-r--r--", extension ".txt" and modified time "2001-02-03T04:05:06Z"`, f)
			}
		case "src":
			if *f.Permissions != "drwxr-xr-x" || !f.IsDirectory || f.Extension != nil {
				t.Errorf(`got %+v, want permissions "drwxr-xr-x", a directory and no extension`, f)
			}
		}
	}
	_, err := do[tree.ListOut](s, "file_list", args{"path": "a.py"})
	fails(t, err, pyerr.Target, "NotADirectoryError")
}

func TestGrepOperation(t *testing.T) {
	t.Parallel()
	s := newSandbox(t)
	s.tree()
	out := want[tree.GrepOut](s, "file_grep", args{"path": ".", "pattern": `(import|def) \w+`, "type": "py", "context_after": 1})
	if out.MatchCount != 2 || *out.FilesMatched != 2 || out.FilesSearched != nil || out.Truncated {
		t.Errorf("got %+v, want match count 2, files matched 2, no files searched and not truncated", out)
	}
	m := out.Matches[1]
	if m.File != s.dir+"/src/main.py" || m.LineNumber != 1 || m.LineContent != "def main():" ||
		m.Line != m.LineContent || !cmp.Equal(m.ContextAfter, []string{"    pass"}) || m.ContextBefore == nil {
		t.Errorf("%+v", m)
	}
	for _, in := range []args{{"pattern": "("}, {"pattern": "x", "max_file_size": "big"}, {"pattern": "x", "type": "nonsense"}} {
		in["path"] = "."
		_, err := do[tree.GrepOut](s, "file_grep", in)
		fails(t, err, pyerr.Target, "ValueError")
	}
	for _, path := range []string{"/dev/zero", "/dev/null"} {
		_, err := do[tree.GrepOut](s, "file_grep", args{"path": path, "pattern": "x"})
		fails(t, err, pyerr.Target, "OSError")
	}
}

// Results for a tree of 200,000 files are bounded, regardless of the number of matches.
func TestLargeTree(t *testing.T) {
	t.Parallel()
	dir := fastDir(t)
	const folders, each = 200, 1000
	for d := range folders {
		sub := fmt.Sprintf("%s/d%03d", dir, d)
		must(t, os.Mkdir(sub, 0o755))
		first := sub + "/f0000.txt"
		must(t, os.WriteFile(first, []byte("hay\n"), 0o644))
		for i := 1; i < each; i++ { // links, since only the names matter
			must(t, syscall.Link(first, fmt.Sprintf("%s/f%04d.txt", sub, i)))
		}
	}
	must(t, os.WriteFile(dir+"/d150/needle.txt", []byte("needle\n"), 0o644))
	s := newSandbox(t, func(c *Config) { c.SearchTime = 2 * time.Minute })

	list := want[tree.ListOut](s, "file_list", args{"path": dir, "recursive": true, "sort_by": "path"})
	if list.TotalCount != folders*each+folders+1 || len(list.Files) != 50_000 || !list.Truncated ||
		list.Files[1].Path != dir+"/d000/f0000.txt" {
		t.Errorf("list: total %d, %d shown", list.TotalCount, len(list.Files))
	}
	glob := want[tree.GlobOut](s, "file_glob", args{"path": dir, "pattern": "**/*9.txt", "max_results": 10, "sort_desc": true})
	if glob.TotalCount != folders*each/10 || len(glob.Files) != 10 || glob.Files[0].Path != dir+"/d199/f0999.txt" {
		t.Errorf("glob: total %d, %+v, want total count %d, 10 files and first path %q",
			glob.TotalCount, glob.Files, folders*each/10, dir+"/d199/f0999.txt")
	}
	rare := want[tree.GrepOut](s, "file_grep", args{"path": dir, "pattern": "needle"})
	if rare.MatchCount != 1 || rare.Truncated || rare.Matches[0].File != dir+"/d150/needle.txt" {
		t.Errorf("grep: got %+v, want match count 1, not truncated and first file %q", rare, dir+"/d150/needle.txt")
	}
	common := want[tree.GrepOut](s, "file_grep", args{"path": dir, "pattern": "hay", "max_results": 10, "offset": 1995})
	if common.MatchCount != 10 || !common.Truncated || common.Matches[0].File != dir+"/d001/f0995.txt" ||
		common.Matches[9].File != dir+"/d002/f0004.txt" {
		t.Errorf("grep: %+v", common)
	}
	page := want[tree.FindOut](s, "file_find", args{"path": dir, "glob": "**/f0000.txt"})
	if len(page.Files) != folders {
		t.Errorf("find: got %d, want %d files", len(page.Files), folders)
	}
	_, err := do[tree.DeleteOut](s, "file_delete", args{"path": dir + "/d000"})
	fails(t, err, pyerr.Target, "OSError")
	want[tree.DeleteOut](s, "file_delete", args{"path": dir + "/d000", "recursive": true})
	if strings.Contains(fmt.Sprint(os.Stat(dir+"/d000")), "d000 ") {
		t.Error("the folder still exists")
	}
}
