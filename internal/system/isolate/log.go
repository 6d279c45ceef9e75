package isolate

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"time"
)

// pump writes the program's output to two files in turn, so that its end is always
// kept and its size is bounded. It runs in init, so output is kept while there is no
// hub.
//
// Each file begins with the number of its turn, which tells readers the order.
type pump struct {
	from  *os.File
	files [2]*os.File
	turn  uint64
	size  int64 // written in this turn
	max   int64
	done  chan struct{}
}

// headSize is the length of a turn's number.
const headSize = 8

// newPump returns a pump and the writing end of its pipe.
func newPump(max int64) (*pump, *os.File, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, nil, fmt.Errorf("create the output pipe: %w", err)
	}
	p := &pump{from: r, max: max, done: make(chan struct{}),
		files: [2]*os.File{os.NewFile(fdLog0, "log"), os.NewFile(fdLog1, "log")}}
	return p, w, nil
}

func (p *pump) run() {
	defer close(p.done)
	buf := make([]byte, 16<<10)
	for {
		n, err := p.from.Read(buf)
		p.write(buf[:n])
		if err != nil {
			return
		}
	}
}

// write ignores errors: a full disk of the host must not stop the program.
func (p *pump) write(b []byte) {
	if p.size > 0 && p.size+int64(len(b)) > p.max {
		p.turn, p.size = p.turn+1, 0
	}
	f := p.files[p.turn%2]
	if p.size == 0 {
		if f.Truncate(0) != nil {
			return
		}
		f.Seek(0, io.SeekStart)
		f.Write(binary.BigEndian.AppendUint64(nil, p.turn))
	}
	n, _ := f.Write(b)
	p.size += int64(n)
}

// drain waits for what the program wrote before it ended, but not for its children,
// which may still have the pipe open.
func (p *pump) drain() {
	p.from.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	<-p.done
}

// ReadLog returns the end of the two log files, at most limit bytes.
func ReadLog(paths [2]string, limit int64) ([]byte, error) {
	var turns [2]uint64
	var parts [2][]byte
	for i, path := range paths {
		data, err := readCapped(path, 64<<20)
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

func readCapped(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, limit))
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
