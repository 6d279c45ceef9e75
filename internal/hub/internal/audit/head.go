package audit

import (
	"bytes"
	"crypto/hmac"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// head states that every line after Gone up to its position is on disk.
type head struct {
	N uint64 `json:"head"` // number of writes; of two records the larger one counts
	position
	Gone  Mark   `json:"gone"` // last line that was pruned
	Keyed bool   `json:"keyed"`
	Sum   string `json:"sum,omitempty"`
}

// The head file has two records, each in its own disk sector, written alternately, so that one is always
// complete. Replacing the file would cost two more syncs.
const (
	headName   = "head"
	recordSize = 512
)

// record encodes a head, padded to the size of a record.
func (h head) record(k key) ([]byte, error) {
	h.Sum = ""
	b, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	h.Sum = k.digest(b)
	if b, err = json.Marshal(h); err != nil {
		return nil, err
	}
	if len(b) >= recordSize {
		return nil, fmt.Errorf("head of %d bytes does not fit into %d", len(b), recordSize)
	}
	return append(append(b, bytes.Repeat([]byte{' '}, recordSize-1-len(b))...), '\n'), nil
}

// headFile is the head of an open log.
type headFile struct {
	file *os.File
	key  key
	now  head // on disk
}

// write replaces the older record and syncs it.
func (f *headFile) write(at position, gone Mark) error {
	h := head{N: f.now.N + 1, position: at, Gone: gone, Keyed: f.now.Keyed}
	b, err := h.record(f.key)
	if err == nil {
		_, err = f.file.WriteAt(b, int64(h.N%2)*recordSize)
	}
	if err == nil {
		err = syncData(f.file)
	}
	if err != nil {
		return fmt.Errorf("write the head of the audit log: %w", err)
	}
	f.now = h
	return nil
}

// readHead returns the newer record and the error of the file; if only one record is valid, it returns both.
// The log can be open: a record that is being written looks damaged for a moment.
func readHead(dir string, k key) (head, error) {
	for try := 0; ; try++ {
		b, err := os.ReadFile(filepath.Join(dir, headName))
		if err != nil {
			return head{}, err
		}
		h, err := parseHead(b, k)
		if err == nil || errors.Is(err, ErrKey) || try == 5 {
			return h, err
		}
		time.Sleep(time.Millisecond)
	}
}

func parseHead(b []byte, k key) (newest head, bad error) {
	if len(b) != 2*recordSize {
		return head{}, fmt.Errorf("the head file has %d bytes instead of %d", len(b), 2*recordSize)
	}
	for record := range slices.Chunk(b, recordSize) {
		var h head
		if err := json.Unmarshal(record, &h); err != nil {
			bad = errors.New("a record of the head is unreadable")
		} else if want, err := h.record(k); err == nil && hmac.Equal(want, record) {
			if newest.Hash == "" || h.N > newest.N {
				newest = h
			}
		} else if h.Keyed && len(k) == 0 {
			return head{}, ErrKey
		} else {
			bad = errors.New("a record of the head was changed, or the log was written with another key")
		}
	}
	return newest, bad
}
