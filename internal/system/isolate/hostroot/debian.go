package hostroot

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// packageTrees lists the databases of dpkg and apt. Like the programs they are lower layers of
// overlays, so that packages can be installed in addition to the host's without changing the
// host.
var packageTrees = []string{"/var/lib/dpkg", "/var/lib/apt"}

// HoldsPackages reports whether a tree of the host is a database of dpkg or apt. Its owners are
// the system's users.
func HoldsPackages(tree string) bool { return slices.Contains(packageTrees, tree) }

// packageEtc lists the parts of /etc, in addition to sharedEtc, that installing packages requires.
var packageEtc = []string{
	"adduser.conf", "debconf.conf", "default/useradd", "deluser.conf", "dpkg", "init.d", "pam.conf", "pam.d", "security/limits.conf",
	"skel", "ucf.conf",
}

// planPackages plans what package managers need, if the host has dpkg. It returns the
// trees to show.
func (p *basePlan) planPackages() (trees []string, err error) {
	if !exists("/usr/bin/dpkg") || !exists("/var/lib/dpkg/status") {
		return nil, nil
	}
	for _, t := range packageTrees {
		if st, err := os.Lstat(t); err == nil && st.IsDir() {
			trees = append(trees, t)
			p.addParents(t[1:])
			p.dir(t[1:], 0o755, 0)
		}
	}
	for _, name := range packageEtc {
		path := filepath.Join("etc", name)
		if exists("/" + path) {
			p.addParents(path)
		}
		if err := p.copy("/"+path, path); err != nil {
			return nil, err
		}
	}
	// An installation need not survive a power failure.
	p.addParents("etc/dpkg/dpkg.cfg.d/cove")
	p.add(baseEntry{path: "etc/dpkg/dpkg.cfg.d/cove", mode: 0o644, data: []byte("force-unsafe-io\n")})
	if err := p.copyApt("/etc/apt"); err != nil {
		return nil, err
	}
	return trees, p.planPackageFolders()
}

// planPackageFolders plans the folders in /var that installed packages own. They are empty, but
// scripts of the packages require them.
func (p *basePlan) planPackageFolders() error {
	lists, err := filepath.Glob("/var/lib/dpkg/info/*.list")
	if err != nil {
		return err
	}
	found := map[string]bool{}
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // removed meanwhile
		}
		for line := range bytes.Lines(text) {
			if bytes.HasPrefix(line, []byte("/var/")) {
				found[string(bytes.TrimSpace(line))] = true
			}
		}
	}
	names := make([]string, 0, len(found))
	for name := range found {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		st, err := os.Lstat(name)
		if err != nil || !st.IsDir() || slices.ContainsFunc(packageTrees, func(t string) bool { return strings.HasPrefix(name, t+"/") }) {
			continue
		}
		owner := st.Sys().(*syscall.Stat_t)
		e := baseEntry{path: name[1:], mode: st.Mode() & (fs.ModeDir | fs.ModePerm | fs.ModeSticky), id: int(owner.Uid), group: int(owner.Gid)}
		if max(e.id, e.group) >= firstUser {
			e.id, e.group = 0, 0
		}
		p.addParents(e.path)
		p.add(e)
	}
	return nil
}

// copyApt copies the configuration of apt, without credentials and without the proxies of
// the host, which sandboxes cannot reach.
func (p *basePlan) copyApt(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
		return nil
	}
	if err != nil {
		return err
	}
	p.addParents(dir[1:] + "/x")
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		switch info, err := e.Info(); {
		case err != nil || strings.HasPrefix(e.Name(), "auth.conf"):
		case e.IsDir():
			if err := p.copyApt(path); err != nil {
				return err
			}
		case info.Mode().IsRegular() && info.Mode()&0o004 != 0 && info.Size() <= maxEtc:
			data, err := readCapped(path, maxEtc)
			if err != nil {
				return err
			}
			if ext := filepath.Ext(path); ext != ".gpg" {
				data = scrubApt(data)
			}
			p.add(baseEntry{path: path[1:], mode: 0o644, data: data})
		}
	}
	return nil
}

// scrubApt removes user names and passwords from URLs, and proxies.
func scrubApt(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if bytes.Contains(bytes.ToLower(line), []byte("proxy")) {
			continue
		}
		for at := 0; ; {
			i := bytes.Index(line[at:], []byte("://"))
			if i < 0 {
				break
			}
			at += i + len("://")
			end := bytes.IndexAny(line[at:], "/ \t\n\"';")
			if end < 0 {
				end = len(line) - at
			}
			if user := bytes.LastIndexByte(line[at:at+end], '@'); user >= 0 {
				line = append(slices.Clone(line[:at]), line[at+user+1:]...)
			}
		}
		out = append(out, line...)
	}
	return out
}

// firstUser is the first ID that is not a system user's.
const firstUser = 1000

// planUsers plans the users and groups: system users of the host, which packages refer
// to, and those of the sandbox. It copies only their names, IDs and folders.
func (p *basePlan) planUsers() {
	passwd := systemLines("/etc/passwd", 7, func(f []string) string {
		return strings.Join([]string{f[0], "x", f[2], f[3], "", f[5], f[6]}, ":")
	})
	group := systemLines("/etc/group", 4, func(f []string) string { return strings.Join([]string{f[0], "x", f[2], ""}, ":") })
	for _, e := range []struct {
		name, host, own string
	}{{"passwd", passwd, ownPasswd}, {"group", group, ownGroup}} {
		text := mergeLines(e.own, e.host)
		p.add(baseEntry{path: "etc/" + e.name, mode: 0o644, data: []byte(text)})
		var locked strings.Builder
		for line := range strings.Lines(text) {
			name, _, _ := strings.Cut(line, ":")
			if e.name == "passwd" {
				fmt.Fprintf(&locked, "%s:*:20000:0:99999:7:::\n", name)
			} else {
				fmt.Fprintf(&locked, "%s:*::\n", name)
			}
		}
		shadow := map[string]string{"passwd": "shadow", "group": "gshadow"}[e.name]
		p.add(baseEntry{path: "etc/" + shadow, mode: 0o640, data: []byte(locked.String())})
	}
}

// systemLines returns the lines of system users or groups.
func systemLines(path string, fields int, line func([]string) string) string {
	text, err := readCapped(path, maxEtc)
	if err != nil {
		return ""
	}
	var out strings.Builder
	for l := range strings.Lines(string(text)) {
		f := strings.Split(strings.TrimSpace(l), ":")
		if len(f) != fields {
			continue
		}
		if id, err := strconv.Atoi(f[2]); err == nil && id >= 0 && id < firstUser {
			out.WriteString(line(f) + "\n")
		}
	}
	return out.String()
}

// mergeLines returns the lines of both texts, without those of the second whose names are in the
// first, in the order of their IDs.
func mergeLines(own, more string) string {
	type entry struct {
		id   int
		line string
	}
	var all []entry
	have := map[string]bool{}
	for _, text := range []string{own, more} {
		for line := range strings.Lines(text) {
			f := strings.Split(line, ":")
			if len(f) < 3 || have[f[0]] {
				continue
			}
			have[f[0]] = true
			id, _ := strconv.Atoi(strings.TrimSpace(f[2]))
			all = append(all, entry{id, line})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.id, b.id) })
	var out strings.Builder
	for _, e := range all {
		out.WriteString(e.line)
	}
	return out.String()
}
