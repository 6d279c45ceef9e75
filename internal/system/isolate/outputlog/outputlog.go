// Package outputlog owns the bounded log of a program's output: two files that are written in
// turn, so that the end of the output is always kept.
package outputlog

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"
)

// Writer copies the program's output to the files. It runs in init, so output is kept while
// no hub runs.
//
// Each file begins with the number of its turn, from which readers learn the order.
type Writer struct {
	from  *os.File
	files [2]*os.File
	turn  uint64
	size  int64 // written in this turn
	max   int64
	done  chan struct{}
}

// headSize is the length of a turn's number.
const headSize = 8

// maxFile bounds what Read reads of one file.
const maxFile = 64 << 20

// New returns a writer to two files of at most max bytes each, and the writing end of its pipe.
func New(files [2]*os.File, max int64) (*Writer, *os.File, error) {
	r, pipe, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("create the output pipe: %w", err)
	}
	return &Writer{from: r, files: files, max: max, done: make(chan struct{})}, pipe, nil
}

// Run copies until the pipe has no writer, or until Drain.
func (w *Writer) Run() {
	defer close(w.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := w.from.Read(buf)
		w.write(buf[:n])
		if err != nil {
			return
		}
	}
}

// write ignores errors: a full disk of the host must not stop the program.
func (w *Writer) write(b []byte) {
	if w.size > 0 && w.size+int64(len(b)) > w.max {
		w.turn, w.size = w.turn+1, 0
	}
	f := w.files[w.turn%2]
	if w.size == 0 {
		if f.Truncate(0) != nil {
			return
		}
		f.Seek(0, io.SeekStart)
		f.Write(binary.BigEndian.AppendUint64(nil, w.turn))
	}
	n, _ := f.Write(b)
	w.size += int64(n)
}

// Drain waits for what the program wrote before it ended, but not for its children,
// which may still have the pipe open. Run must have been called.
func (w *Writer) Drain() {
	w.from.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	<-w.done
}

// Read returns the end of the two files, at most limit bytes.
func Read(paths [2]string, limit int64) ([]byte, error) {
	var turns [2]uint64
	var parts [2][]byte
	for i, path := range paths {
		data, err := readFile(path)
		if err != nil {
			return nil, err
		}
		if len(data) >= headSize {
			turns[i], parts[i] = binary.BigEndian.Uint64(data), data[headSize:]
		}
	}
	if turns[0] > turns[1] {
		parts[0], parts[1] = parts[1], parts[0]
	}
	all := append(parts[0], parts[1]...)
	return all[max(0, int64(len(all))-limit):], nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxFile))
}
