package audit

import (
	"bytes"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

// head is what the log vouches for: every line from after Gone up to Seq is on disk.
type head struct {
	N      uint64 `json:"head"` // counts the writes; the larger one of two records holds
	Seq    uint64 `json:"seq"`
	Hash   string `json:"hash"`
	File   uint64 `json:"file"` // where line Seq ends
	Offset int64  `json:"offset"`
	Gone   Mark   `json:"gone"` // the last line of the files that were given away
	Keyed  bool   `json:"keyed"`
	Sum    string `json:"sum,omitempty"`
}

// The head file has two records, each in a disk sector of its own and written in
// turn: whatever happens during a write, the other one is whole. It costs a write
// into the page cache, where replacing a file would cost two syncs.
const (
	headName = "head"
	slot     = 512
)

type headFile struct {
	f     *os.File
	chain chain
	now   head
}

// createHead begins a log. The file appears whole or not at all.
func createHead(dir string, key []byte) error {
	c := newChain(key)
	h := head{Hash: genesis.String(), Gone: Mark{Hash: genesis.String()}, Keyed: len(key) > 0}
	var both []byte
	for range 2 {
		record, err := h.record(&c)
		if err != nil {
			return err
		}
		both = append(both, record...)
		h.N++
	}
	return atomicfile.Replace(filepath.Join(dir, headName), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(both)
		return err
	})
}

func (h head) record(c *chain) ([]byte, error) {
	h.Sum = ""
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	sum := c.digest(b)
	h.Sum = sum.String()
	if b, err = json.Marshal(h); err != nil {
		return nil, err
	}
	if len(b) >= slot {
		return nil, fmt.Errorf("a head of %d bytes does not fit", len(b))
	}
	b = append(b, bytes.Repeat([]byte{' '}, slot-1-len(b))...)
	return append(b, '\n'), nil
}

// openRecord accepts exactly what record writes.
func openRecord(b []byte, c *chain) (head, error) {
	var h head
	if err := json.Unmarshal(b, &h); err != nil {
		return h, errors.New("a record of it is not readable")
	}
	if want, err := h.record(c); err != nil || !hmac.Equal(want, b) {
		return h, errors.New("a record of it was changed, or the key is not the one it was written with")
	}
	if len(h.Hash) != len(genesis) || len(h.Gone.Hash) != len(genesis) {
		return h, errors.New("a record of it is not whole")
	}
	return h, nil
}

// write replaces the older record.
func (f *headFile) write(h head) error {
	h.N = f.now.N + 1
	h.Keyed = f.now.Keyed
	b, err := h.record(&f.chain)
	if err == nil {
		_, err = f.f.WriteAt(b, int64(h.N%2)*slot)
	}
	if err != nil {
		return fmt.Errorf("write the head of the audit log: %w", err)
	}
	f.now = h
	return nil
}

// readHead returns the newer record and what is wrong with the file. With one good
// record it returns both. ErrKey is answered before anything else.
func readHead(r io.ReaderAt, key []byte) (head, error) {
	b := make([]byte, 2*slot+1)
	n, err := r.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return head{}, err
	}
	if n != 2*slot {
		return head{}, fmt.Errorf("the head file has %d bytes instead of %d", n, 2*slot)
	}
	c := newChain(key)
	var newest head
	var bad error
	for i := range 2 {
		h, err := openRecord(b[i*slot:(i+1)*slot], &c)
		switch {
		case err != nil && h.Keyed && len(key) == 0:
			return head{}, ErrKey
		case err != nil:
			bad = err
		case newest.Hash == "" || h.N > newest.N:
			newest = h
		}
	}
	return newest, bad
}

// readHeadOf reads the head of a log that may be in use. A record that is being
// written looks damaged for a moment.
func readHeadOf(dir string, key []byte) (head, error) {
	f, err := os.Open(filepath.Join(dir, headName))
	if err != nil {
		return head{}, err
	}
	defer f.Close()
	for try := 0; ; try++ {
		h, err := readHead(f, key)
		if err == nil || errors.Is(err, ErrKey) || try == 5 {
			return h, err
		}
		time.Sleep(time.Millisecond)
	}
}

// ErrKey says that the log was written with a key, and none was given.
var ErrKey = errors.New("the audit log was written with a key: give the key")

func (h head) place() place {
	return place{file: h.File, offset: h.Offset, seq: h.Seq, hash: digest([]byte(h.Hash))}
}
