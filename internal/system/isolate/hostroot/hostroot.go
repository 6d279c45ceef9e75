// Package hostroot builds the root filesystem of sandboxes without an image: the host's
// programs, a layer above them with what sandboxes need in addition, and a base with
// everything that must be private or filtered.
//
// It owns the folder of that base, and only reads from the host. It copies only files that
// every user of the host may read, no credentials, and no names of people.
package hostroot

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/system/isolate"
)

// Root is a root filesystem with the host's programs: a small folder with everything that
// must be private or filtered, and the host's program trees, which overlays show
// without a copy.
type Root struct {
	// Base is the lowest layer of "/". Its name is a digest of its content, so equal
	// bases are created once, and a change on the host results in another base.
	Base string
	// Trees are the host's folders to show, such as /usr and /opt.
	Trees []string
}

// programTrees lists the folders with programs. On most machines all but the
// first two are links into /usr.
var programTrees = []string{"usr", "opt", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// sharedEtc lists the parts of the host's /etc that are copied: what programs need to
// behave the same, and nothing that identifies this machine or grants access to it. Only
// files that every user of the host may read are copied.
var sharedEtc = []string{
	"alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "chromium", "chromium.d", "debian_version", "dconf",
	"fonts", "gai.conf", "ghostscript", "glvnd", "groff", "gtk-2.0", "gtk-3.0", "gtk-4.0", "host.conf", "ImageMagick-6", "ImageMagick-7",
	"inputrc", "java", "java-11-openjdk", "java-17-openjdk", "java-21-openjdk", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "libreoffice",
	"libpaper.d", "locale.alias", "locale.conf", "localtime", "login.defs", "lsb-release", "magic", "magic.mime", "mailcap", "manpath.config",
	"maven", "mime.types", "networks", "openal", "os-release", "papersize", "perl", "pki/ca-trust", "pki/tls/certs", "profile", "protocols",
	"pulse", "python3", "python3.9", "python3.10", "python3.11", "python3.12", "python3.13", "python3.14", "rpc", "services", "shells",
	"ssl/certs", "ssl/openssl.cnf", "terminfo", "tigervnc", "timezone", "vim", "vulkan", "X11", "xattr.conf", "xdg", "xml",
}

// ownEtc lists the files in /etc that are not from the host.
var ownEtc = []struct{ name, text string }{
	{"nsswitch.conf", "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nnetworks: files\nprotocols: files\nservices: files\n"},
	{"hosts", "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n"},
	{"hostname", "sandbox\n"},
	// With an identity, commits work without configuration.
	{"gitconfig", "[user]\n\tname = gem\n\temail = gem@localhost\n[init]\n\tdefaultBranch = main\n"},
	{"resolv.conf", isolate.ResolverFile},
}

// The users and groups of every sandbox. The user's second name and home are those that E2B's clients expect.
const (
	ownPasswd = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin\n" +
		"_apt:x:42:65534::/nonexistent:/usr/sbin/nologin\n" +
		"gem:x:1000:1000:gem:/home/gem:/bin/bash\nuser:x:1000:1000:gem:/home/user:/bin/bash\n" +
		"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n"
	ownGroup = "root:x:0:\ndaemon:x:1:\ntty:x:5:\naudio:x:29:\nvideo:x:44:\nusers:x:100:\ngem:x:1000:\nuser:x:1000:\nnogroup:x:65534:\n"
)

// ownHome lists the files in the user's home. They end with success: "exit" in a new shell returns the last status.
var ownHome = []struct{ name, text string }{
	{".bashrc", `# ~/.bashrc: read by interactive shells.
case $- in *i*) ;; *) return ;; esac
HISTCONTROL=ignoreboth
HISTSIZE=10000
HISTFILESIZE=20000
shopt -s histappend checkwinsize
PS1='\[\e[32m\]\u@\h\[\e[0m\]:\[\e[34m\]\w\[\e[0m\]\$ '
alias ls='ls --color=auto' ll='ls -alF' grep='grep --color=auto'
if [ -r /usr/share/bash-completion/bash_completion ]; then . /usr/share/bash-completion/bash_completion; fi
if [ -r ~/.bash_aliases ]; then . ~/.bash_aliases; fi
`},
	{".profile", `# ~/.profile: read by login shells.
if [ -n "$BASH_VERSION" ] && [ -r ~/.bashrc ]; then . ~/.bashrc; fi
`},
}

// HomeFiles returns the files that every home has, by name.
func HomeFiles() map[string]string {
	files := map[string]string{}
	for _, f := range ownHome {
		files[f.name] = f.text
	}
	return files
}

// Certificates returns the path of the authorities that the host trusts, or "".
func Certificates() string {
	for _, path := range []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"} {
		if exists(path) {
			return path
		}
	}
	return ""
}

// profile adds folders that /etc/profile removes from the PATH of a login shell.
const profile = `for dir in /run/bin "$HOME/.local/bin"; do
  case ":$PATH:" in *":$dir:"*) ;; *) PATH="$dir:$PATH" ;; esac
done
unset dir
export PATH
`

// maxEtc bounds a copied file. All files that programs need are smaller.
const maxEtc = 4 << 20

// Build creates the base in a folder below dir, if it does not exist.
// Owner is the host ID that is root inside: 0 for a base that is mounted Mapped.
// Without root (owner -1) the caller owns all files.
func Build(dir string, owner int) (Root, error) {
	p := &basePlan{owner: owner, have: map[string]bool{}}
	trees, err := p.plan()
	if err != nil {
		return Root{}, fmt.Errorf("plan the root filesystem: %w", err)
	}
	root := Root{Base: filepath.Join(dir, p.name()), Trees: trees}
	if exists(root.Base) {
		return root, nil
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return Root{}, err
	}
	tmp, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return Root{}, err
	}
	defer os.RemoveAll(tmp)
	if err := p.write(tmp); err != nil {
		return Root{}, fmt.Errorf("build the root filesystem: %w", err)
	}
	// Another process may have created it meanwhile.
	if err := os.Rename(tmp, root.Base); err != nil && !exists(root.Base) {
		return Root{}, err
	}
	return root, nil
}

// basePlan lists the content of the base, in the order of its creation.
type basePlan struct {
	owner   int
	entries []baseEntry
	have    map[string]bool
}

type baseEntry struct {
	path  string
	mode  os.FileMode
	id    int    // owner inside
	group int    // group inside, if it differs from the owner's
	link  string // of a symlink
	data  []byte // of a file
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
		fmt.Fprintf(h, "%q %v %d %d %q %x\n", e.path, e.mode, e.id, e.group, e.link, sha256.Sum256(e.data))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

func (p *basePlan) plan() (trees []string, err error) {
	for _, path := range []string{"etc", "home", "var", "var/cache", "var/lib", "var/log", "var/mail", "var/spool",
		"run", "mnt", "media", "srv", "dev"} {
		p.dir(path, 0o755, 0)
	}
	p.dir("home/gem", 0o750, isolate.UID)
	p.dir("home/gem/workspace", 0o755, isolate.UID)
	for _, e := range ownHome {
		p.add(baseEntry{path: "home/gem/" + e.name, mode: 0o644, id: isolate.UID, data: []byte(e.text)})
	}
	p.dir(isolate.HomeAlias[1:], 0o755, isolate.UID)
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
	p.planUsers()
	for _, e := range ownEtc {
		p.add(baseEntry{path: "etc/" + e.name, mode: 0o644, data: []byte(e.text)})
	}
	p.dir("etc/profile.d", 0o755, 0)
	p.add(baseEntry{path: "etc/profile.d/cove.sh", mode: 0o644, data: []byte(profile)})
	for _, name := range sharedEtc {
		if up := filepath.Dir(name); up != "." && exists(filepath.Join("/etc", name)) {
			p.dir(filepath.Join("etc", filepath.Dir(up)), 0o755, 0)
			p.dir(filepath.Join("etc", up), 0o755, 0)
		}
		if err := p.copy(filepath.Join("/etc", name), filepath.Join("etc", name)); err != nil {
			return nil, err
		}
	}
	packages, err := p.planPackages()
	if err != nil {
		return nil, err
	}
	return append(trees, packages...), p.additions()
}

// copy adds a file, link or folder. It skips files that not every user may read.
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

// write creates the planned tree in dir.
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
		case e.mode&os.ModeCharDevice != 0: // a whiteout, which hides the file below
			err = unix.Mknod(at, unix.S_IFCHR, 0)
		default:
			err = os.WriteFile(at, e.data, 0o600)
		}
		group := e.group
		if group == 0 {
			group = e.id
		}
		if err == nil && p.owner >= 0 && p.owner+e.id+group != 0 {
			err = os.Lchown(at, p.owner+e.id, p.owner+group)
		}
		if err == nil && e.mode&(os.ModeSymlink|os.ModeCharDevice) == 0 {
			err = os.Chmod(at, e.mode&^os.ModeDir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func readCapped(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}
