package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Secret is a value that only one command sees. It is in a file that is not on the disk.
type Secret struct {
	ID     string `json:"id" pattern:"^[A-Za-z0-9_.-]{1,64}$" doc:"Name of the file"`
	Value  string `json:"value" doc:"Content"`
	Target string `json:"target" default:"" doc:"Path; default: in the folder of secrets, unless env is set"`
	Env    string `json:"env" default:"" doc:"Variable with the value"`
	Owner  string `json:"owner" default:"" doc:"Owner of the file; default root"`
	Mode   string `json:"mode" default:"" doc:"Mode of the file in octal; default 0400"`
}

// Cache is a mounted folder.
type Cache struct {
	Path  string `json:"path" doc:"Where it is mounted"`
	Owner string `json:"owner" default:"" doc:"Owner; default root"`
	Mode  string `json:"mode" default:"" doc:"Mode in octal; default 0755"`
}

// provided are the files of secrets of a command.
type provided struct{ files, folders []string } // in the order of their creation

// remove removes the files, and the folders that were created for them and are empty.
func (p *provided) remove() {
	for _, path := range slices.Concat(p.folders, p.files) {
		defer os.Remove(path) // best effort: Settle searches the disk for the values
	}
}

// provide writes the secrets of a command, adds their variables to it and prepares its caches.
func (s *Service) provide(in *RunIn) (*provided, error) {
	p := &provided{}
	for _, c := range in.Caches {
		if err := s.setOwner(c.Path, c.Owner, c.Mode, "0755"); err != nil {
			return p, fmt.Errorf("prepare the cache %s: %w", c.Path, err)
		}
	}
	if len(in.Secrets) == 0 {
		return p, nil
	}
	if err := os.MkdirAll(s.Secrets, 0o755); err != nil {
		return p, err
	}
	for _, secret := range in.Secrets {
		if secret.Env != "" {
			if in.Env == nil {
				in.Env = map[string]string{}
			}
			in.Env[secret.Env] = secret.Value
		}
		if secret.Env == "" || secret.Target != "" {
			if err := s.writeSecret(p, secret); err != nil {
				return p, fmt.Errorf("provide the secret %s: %w", secret.ID, err)
			}
		}
	}
	return p, nil
}

// setOwner sets owner and mode of a path.
func (s *Service) setOwner(path, owner, mode, standard string) error {
	u, err := lookup(owner)
	if err != nil {
		return err
	}
	if mode == "" {
		mode = standard
	}
	bits, err := strconv.ParseUint(mode, 8, 12)
	if err != nil {
		return op.Errorf(op.Invalid, "mode %q: use octal digits", mode)
	}
	if err := chown(path, int(u.UID), int(u.GID)); err != nil {
		return err
	}
	return os.Chmod(path, *modeOf(uint32(bits)))
}

// writeSecret writes a file that is not on the disk and, for another target, a link to it.
func (s *Service) writeSecret(p *provided, secret Secret) error {
	if !filepath.IsLocal(secret.ID) || strings.ContainsRune(secret.ID, '/') {
		return op.Errorf(op.Invalid, "invalid name")
	}
	file := filepath.Join(s.Secrets, secret.ID)
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		return op.Errorf(op.Conflict, "it is mounted twice, or the step before left it behind")
	}
	if err != nil {
		return err
	}
	p.files = append(p.files, file)
	_, err = io.WriteString(f, secret.Value)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := s.setOwner(file, secret.Owner, secret.Mode, "0400"); err != nil || secret.Target == "" || secret.Target == file {
		return err
	}
	if !filepath.IsAbs(secret.Target) {
		return op.Errorf(op.Invalid, "target %.200q: use an absolute path", secret.Target)
	}
	var missing []string
	dir := filepath.Dir(secret.Target)
	for ; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	for _, dir := range slices.Backward(missing) {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		p.folders = append(p.folders, dir)
	}
	if err := os.Symlink(file, secret.Target); errors.Is(err, fs.ErrExist) {
		return op.Errorf(op.Conflict, "its target %.200s exists; use another target", secret.Target)
	} else if err != nil {
		return err
	}
	p.files = append(p.files, secret.Target)
	return nil
}

// SettleIn says what the saved disk must not contain.
type SettleIn struct {
	Secrets map[string]string `json:"secrets" nullable:"true" doc:"Values to search for, by name"`
	Since   time.Time         `json:"since,omitzero" doc:"Files that were changed before are not searched"`
	Except  []string          `json:"except" nullable:"true" doc:"Folders that are not searched, because they are mounted"`
}

// Settled is the result of Settle.
type Settled struct {
	Secret string `json:"secret,omitempty" doc:"Name of a secret that was found"`
	Path   string `json:"path,omitempty" doc:"File that contains it"`
}

// minSearched is the minimum length of a value that is searched for: shorter ones occur by chance.
const minSearched = 8

// notSaved are folders that are not saved with the disk.
var notSaved = []string{"proc", "sys", "dev", "run"}

// Settle ends all processes that steps have left behind, so that none changes the disk after its layer was saved. Then it
// searches the files that have changed for secrets.
func (s *Service) Settle(ctx context.Context, in SettleIn) (Settled, error) {
	if err := s.EndOthers(ctx); err != nil {
		return Settled{}, err
	}
	values := maps.Clone(in.Secrets)
	maps.DeleteFunc(values, func(_, value string) bool { return len(value) < minSearched })
	if len(values) == 0 {
		return Settled{}, nil
	}
	skip := slices.Clone(in.Except)
	for _, name := range notSaved {
		skip = append(skip, filepath.Join(s.Root, name))
	}
	var found Settled
	err := filepath.WalkDir(s.Root, func(path string, d fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil || d.IsDir() && slices.Contains(skip, path) {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		if st, ok := info.Sys().(*syscall.Stat_t); !ok || time.Unix(st.Ctim.Unix()).Before(in.Since) {
			return nil
		}
		name, err := searchFile(path, values)
		if err == nil && name != "" {
			found = Settled{name, path}
			return fs.SkipAll
		}
		return err
	})
	return found, err
}

// searchFile returns the name of a value that a file contains.
func searchFile(path string, values map[string]string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	most := 0
	for _, v := range values {
		most = max(most, len(v))
	}
	buf := make([]byte, 256<<10+most)
	kept := 0
	for {
		n, err := io.ReadFull(f, buf[kept:])
		part := buf[:kept+n]
		for name, value := range values {
			if bytes.Contains(part, []byte(value)) {
				return name, nil
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return "", nil
		}
		if err != nil {
			return "", err
		}
		kept = copy(buf, part[len(part)-most+1:])
	}
}
