package secretstore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

const (
	keyFile = "key"
	suffix  = ".sealed"
	// version is the first byte of a sealed file, and authenticated.
	version = 1
	// maxFile is more than the maximum size of a tenant's file.
	maxFile = 2 * MaxPerTenant * (MaxValue + 64<<10)
)

// errSealed has no details, because authenticated decryption does not reveal the cause.
var errSealed = errors.New("the file was changed, or sealed with another key")

// sealer encrypts and authenticates files.
type sealer struct{ aead cipher.AEAD }

// openSealer reads or creates the key. It does not create a key if there are files that another key
// sealed.
func openSealer(dir string, needed bool) (*sealer, error) {
	path := filepath.Join(dir, keyFile)
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && needed:
		return nil, fmt.Errorf("%s is missing; restore it, or remove the *%s files next to it, which cannot be opened without it", path, suffix)
	case errors.Is(err, fs.ErrNotExist):
		return makeSealer(path)
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, atomicfile.Irregular(path, info.Mode())
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s is readable by other users; run chmod 600 on it, and rotate the secrets if others may have read it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(text)))
	if err != nil || len(key) != 32 {
		return nil, fmt.Errorf("%s is not a valid key; restore it", path) // without its content
	}
	return newSealer(key)
}

func makeSealer(path string) (*sealer, error) {
	key := make([]byte, 32)
	rand.Read(key)
	if err := replace(path, []byte(hex.EncodeToString(key)+"\n")); err != nil {
		return nil, err
	}
	return newSealer(key)
}

func newSealer(key []byte) (*sealer, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return nil, err
	}
	return &sealer{aead}, nil
}

func replace(path string, data []byte) error {
	return atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(data)
		return err
	})
}

// kept is the plain content of a tenant's file.
type kept struct {
	Tenant  string      `json:"tenant"`
	Secrets []keptEntry `json:"secrets"`
}

type keptEntry struct {
	Info
	Value []byte `json:"value"`
}

// fileOf returns the file name of a tenant, whose name may be no valid file name.
func fileOf(tenant string) string {
	sum := sha256.Sum256([]byte(tenant))
	return hex.EncodeToString(sum[:16]) + suffix
}

// sealed lists the files of tenants, and removes temporary files of a crash.
func sealed(dir string) (files []string, err error) {
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range list {
		switch {
		case atomicfile.IsTemp(e.Name()):
			if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
				return nil, err
			}
		case strings.HasSuffix(e.Name(), suffix):
			files = append(files, e.Name())
		}
	}
	return files, nil
}

// bound is the additional authenticated data of a file: its name, so that the file of one tenant cannot
// replace that of another.
func bound(file string) []byte { return append([]byte{version}, file...) }

func (s *Store) write(name string, t tenant) error {
	file := fileOf(name)
	path := filepath.Join(s.cfg.Dir, file)
	k := kept{Tenant: name}
	for _, e := range t {
		k.Secrets = append(k.Secrets, keptEntry{e.Info, []byte(e.value.Reveal())})
	}
	plain, err := json.Marshal(k)
	if err != nil {
		return err
	}
	defer clear(plain)
	if err := replace(path, s.seal.aead.Seal([]byte{version}, nil, plain, bound(file))); err != nil {
		return err
	}
	if len(t) == 0 {
		// The file has no secrets, so the removal need not be durable.
		os.Remove(path)
	}
	return nil
}

func (s *Store) read(file string) (string, tenant, error) {
	path := filepath.Join(s.cfg.Dir, file)
	info, err := os.Lstat(path)
	if err != nil {
		return "", nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxFile {
		return "", nil, errors.New("not a secrets file")
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	if len(data) == 0 || data[0] != version {
		return "", nil, errSealed
	}
	plain, err := s.seal.aead.Open(nil, nil, data[1:], bound(file))
	if err != nil {
		return "", nil, errSealed
	}
	defer clear(plain)
	var k kept
	if err := json.Unmarshal(plain, &k); err != nil || fileOf(k.Tenant) != file {
		return "", nil, errSealed
	}
	t := tenant{}
	for _, e := range k.Secrets {
		t[e.Name] = entry{e.Info, New(string(e.Value))}
	}
	return k.Tenant, t, nil
}
