package shell

import (
	"errors"
	"io/fs"
	"os"
)

// keptMarks is how many commands keep their marks.
const keptMarks = 16

// marks are files that make each command run at most once. A file whose name has the key of
// a command means that the command runs or must never run.
type marks struct {
	prefix string
	keys   []string // the latest keys
}

func (m *marks) path(key string) string { return m.prefix + "." + key }

// remember keeps the mark of a key for a while, because its line may be part of a loop.
func (m *marks) remember(key string) {
	m.keys = append(m.keys, key)
	if len(m.keys) > keptMarks {
		os.Remove(m.path(m.keys[0]))
		m.keys = m.keys[1:]
	}
}

// revoke ensures that the shell never runs the command with this key. False means that
// the command already runs. The shell removes its files before done is closed.
func (m *marks) revoke(key string, done <-chan struct{}) bool {
	f, err := os.OpenFile(m.path(key), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return !errors.Is(err, fs.ErrExist)
	}
	f.Close()
	select {
	case <-done:
		os.Remove(f.Name())
	default:
	}
	return true
}
