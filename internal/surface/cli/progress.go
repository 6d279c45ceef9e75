package cli

import (
	"fmt"
	"io"
	"time"
)

// Progress returns a reader that reports the progress of a copy on the terminal w. size is -1
// if it is unknown. Copies of less than a second report nothing.
func Progress(r io.Reader, w io.Writer, verb string, size int64) io.Reader {
	return &progress{Reader: r, w: w, verb: verb, size: size, began: time.Now()}
}

// watch reports the progress of a copy to a person.
func (r *run) watch(body io.Reader, verb string, size int64) io.Reader {
	if !r.Person() {
		return body
	}
	return Progress(body, r.Stderr, verb, size)
}

type progress struct {
	io.Reader
	w       io.Writer
	verb    string
	n, size int64
	began   time.Time
	shown   time.Time
}

func (p *progress) Read(b []byte) (int, error) {
	n, err := p.Reader.Read(b)
	p.n += int64(n)
	if took := time.Since(p.began); took > time.Second && (err != nil || time.Since(p.shown) > 200*time.Millisecond) {
		p.shown = time.Now()
		p.show(took)
		if err != nil {
			fmt.Fprintln(p.w)
		}
	}
	return n, err
}

func (p *progress) show(took time.Duration) {
	mb, rate := float64(p.n)/1e6, float64(p.n)/1e6/took.Seconds()
	if p.size <= 0 {
		fmt.Fprintf(p.w, "\r%s %.1f MB, %.1f MB/s \x1b[K", p.verb, mb, rate)
		return
	}
	left := time.Duration(float64(p.size-p.n) / float64(p.n+1) * float64(took)).Round(time.Second)
	fmt.Fprintf(p.w, "\r%s %.1f of %.1f MB (%d %%), %.1f MB/s, %v left \x1b[K",
		p.verb, mb, float64(p.size)/1e6, p.n*100/p.size, rate, left)
}
