package isolate

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// The user inside.
const (
	User = "gem"
	UID  = 1000
	GID  = 1000
	Home = "/home/gem"
)

// HostRoot is a root filesystem made of the host's own tools: a small folder
// that holds what must be private or filtered, and the host's trees of programs,
// which are shown through overlays and never copied.
type HostRoot struct {
	// Base is the lowest layer of "/". Its name tells its content, so that equal
	// ones are made once; a change on the host makes a new one.
	Base string
	// Trees are the host's folders to show, such as /usr and /opt.
	Trees []string
}

// programTrees are the folders that hold programs. On most machines all but the
// first two are links into /usr.
var programTrees = []string{"usr", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// sharedEtc is what of the host's /etc is copied: what programs need to run
// alike, and nothing that names or opens this machine. Of these only what
// everyone on the host may read is taken.
var sharedEtc = []string{
	"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "chromium", "chromium.d", "debian_version", "dconf",
	"fonts", "gai.conf", "ghostscript", "glvnd", "groff", "gtk-2.0", "gtk-3.0", "gtk-4.0", "host.conf", "ImageMagick-6", "ImageMagick-7",
	"inputrc", "java", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice",
	"libpaper.d", "locale.alias", "locale.conf", "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "mailcap", "manpath.config",
	"maven", "mime.types", "networks", "openal", "os-release", "papersize", "perl", "pki/ca-trust", "pki/tls/certs", "profile", "protocols",
	"pulse", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "rpc", "services", "shells",
	"ssl/certs", "ssl/openssl.cnf", "terminfo", "tigervnc", "timezone", "vim", "vulkan", "X11", "xattr.conf", "xdg", "xml",
}

// ownEtc is what of /etc is ours.
var ownEtc = []struct{ name, text string }{
	{"passwd", "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"gem:x:1000:1000:gem:/home/gem:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"},
	{"group", "root:x:0:\ndaemon:x:1:\ntty:x:5:\naudio:x:29:\nvideo:x:44:\nusers:x:100:\ngem:x:1000:\nnogroup:x:65534:\n"},
	{"nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"},
	{"hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"},
	{"hostname", "sandbox\n"},
	// Names are resolved by the way out, not here: this answers no at once.
	{"resolv.conf", "nameserver 127.0.0.1\noptions timeout:1 attempts:1\n"},
}

// maxEtc bounds one copied file: nothing that programs need is larger.
const maxEtc = 4 << 20

// BuildHostRoot makes the base in a folder below dir, if it is not there yet.
// Owner is the host ID that is root inside: 0 for a base that is mounted Mapped.
// Without root (owner -1) the caller owns everything.
func BuildHostRoot(dir string, owner int) (HostRoot, error) {
	p := &basePlan{owner: owner, have: map[string]bool{}}
	trees, err := p.plan()
	if err != nil {
		return HostRoot{}, fmt.Errorf("plan the root filesystem: %w", err)
	}
	root := HostRoot{Base: filepath.Join(dir, p.name()), Trees: trees}
	if exists(root.Base) {
		return root, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return HostRoot{}, err
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return HostRoot{}, err
	}
	defer os.RemoveAll(tmp)
	if err := p.write(tmp); err != nil {
		return HostRoot{}, fmt.Errorf("build the root filesystem: %w", err)
	}
	// Another may have been quicker.
	if err := os.Rename(tmp, root.Base); err != nil && !exists(root.Base) {
		return HostRoot{}, err
	}
	return root, nil
}

// basePlan is what the base will hold, in the order to make it.
type basePlan struct {
	owner   int
	entries []baseEntry
	have    map[string]bool
}

type baseEntry struct {
	path string
	mode os.FileMode
	id   int    // owner inside
	link string // of a symlink
	data []byte // of a file
}

func (p *basePlan) add(e baseEntry) {
	if !p.have[e.path] {
		p.have[e.path] = true
		p.entries = append(p.entries, e)
	}
}

func (p *basePlan) dir(path string, mode os.FileMode, id int) {
	p.add(baseEntry{path: path, mode: mode | os.ModeDir, id: id})
}

func (p *basePlan) name() string {
	h := sha256.New()
	fmt.Fprintf(h, "owner %d\n", p.owner)
	for _, e := range p.entries {
		fmt.Fprintf(h, "%q %v %d %q %x\n", e.path, e.mode, e.id, e.link, sha256.Sum256(e.data))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func (p *basePlan) plan() (trees []string, err error) {
	for _, path := range []string{"etc", "home", "var", "var/cache", "var/lib", "var/log", "var/mail", "var/spool", "run", "mnt", "media", "srv", "dev"} {
		p.dir(path, 0o755, 0)
	}
	p.dir("home/gem", 0o750, UID)
	p.dir("root", 0o700, 0)
	p.dir("tmp", 0o777|os.ModeSticky, 0)
	p.dir("var/tmp", 0o777|os.ModeSticky, 0)
	p.dir("proc", 0o555, 0)
	p.dir("sys", 0o555, 0)
	for _, l := range [][2]string{{"var/run", "/run"}, {"var/lock", "/run/lock"}, {"etc/mtab", "/proc/self/mounts"}} {
		p.add(baseEntry{path: l[0], mode: os.ModeSymlink, link: l[1]})
	}
	for _, name := range programTrees {
		st, err := os.Lstat("/" + name)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if st.IsDir() {
			trees = append(trees, "/"+name)
			p.dir(name, 0o755, 0)
		} else if err := p.copy("/"+name, name); err != nil {
			return nil, err
		}
	}
	for _, e := range ownEtc {
		p.add(baseEntry{path: "etc/" + e.name, mode: 0o644, data: []byte(e.text)})
	}
	for _, name := range sharedEtc {
		if up := filepath.Dir(name); up != "." && exists(filepath.Join("/etc", name)) {
			p.dir(filepath.Join("etc", filepath.Dir(up)), 0o755, 0)
			p.dir(filepath.Join("etc", up), 0o755, 0)
		}
		if err := p.copy(filepath.Join("/etc", name), filepath.Join("etc", name)); err != nil {
			return nil, err
		}
	}
	return trees, nil
}

// copy takes a file, link or folder, as far as everyone may read it.
func (p *basePlan) copy(from, to string) error {
	st, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	switch mode := st.Mode(); {
	case mode&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		p.add(baseEntry{path: to, mode: os.ModeSymlink, link: target})
		return err
	case mode.IsRegular() && mode.Perm()&0o004 != 0 && st.Size() <= maxEtc:
		data, err := readCapped(from, maxEtc)
		p.add(baseEntry{path: to, mode: mode.Perm() & 0o755, data: data})
		return err
	case mode.IsDir() && mode.Perm()&0o005 == 0o005:
		p.dir(to, 0o755, 0)
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".gz") {
				continue // links to manual pages, the bulk of /etc/alternatives
			}
			if err := p.copy(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// write makes the planned tree in dir.
func (p *basePlan) write(dir string) error {
	for _, e := range append([]baseEntry{{mode: 0o755 | os.ModeDir}}, p.entries...) {
		at := filepath.Join(dir, e.path)
		var err error
		switch {
		case e.path == "": // dir itself
		case e.mode.IsDir():
			err = os.Mkdir(at, 0o700)
		case e.mode&os.ModeSymlink != 0:
			err = os.Symlink(e.link, at)
		default:
			err = os.WriteFile(at, e.data, 0o600)
		}
		if err == nil && p.owner >= 0 && p.owner+e.id != 0 {
			err = os.Lchown(at, p.owner+e.id, p.owner+e.id)
		}
		if err == nil && e.mode&os.ModeSymlink == 0 {
			err = os.Chmod(at, e.mode&^os.ModeDir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
