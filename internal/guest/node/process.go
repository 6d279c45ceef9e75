package node

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/guest/internal/kernel"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

//go:embed worker.js
var worker string

const (
	// terminateTimeout limits the sending of a termination.
	terminateTimeout = 250 * time.Millisecond
	// maxMessage limits the size of a value or an error.
	maxMessage = 4 << 20
)

// bootstrap reads the worker from descriptor 3 and calls it, so that no program can modify
// it. It passes import, which works only in the script that contains it.
const bootstrap = `{const fs=require("fs"),b=Buffer.alloc(%d);for(let n=0;n<b.length;)n+=fs.readSync(3,b,n,b.length-n,null);` +
	`require("vm").runInThisContext(b.toString(),{filename:"cove:worker"})(%t,"%x",(n,o)=>o?import(n,o):import(n))}`

// start configures a process.
type start struct {
	path  string // of Node.js
	dir   string
	env   []string
	once  bool
	stdin io.Reader // nil: none
	limit int64     // of the output of a cell, in bytes of its reply
}

// message is sent to a process.
type message struct {
	ID        int     `json:"id,omitempty"`
	Code      *string `json:"code,omitempty"`
	Cwd       string  `json:"cwd,omitempty"`
	Base      string  `json:"base,omitempty"`
	Stdin     *string `json:"stdin,omitempty"`
	Interrupt int     `json:"interrupt,omitempty"`
}

// cellEnd says how a cell ended.
type cellEnd struct {
	ID     int    `json:"id"`
	Status string `json:"status"` // ok, error, interrupted, waiting
	Cwd    string `json:"cwd"`
}

// process is a running Node.js with the worker in it. It owns its pipes and the
// goroutines that read them; all end with it.
type process struct {
	*proc.Process
	cells        *os.File // the service's end of descriptor 3
	terminations *os.File // the service's end of descriptor 5
	stdout       *tap     // includes the worker's frames
	stderr       *tap
	frames       parser
	message      []byte // the start of a message of several frames
	queue        chan message
	version      chan string // has an element once the worker runs
	ended        chan cellEnd
	terminated   chan struct{} // has an element once the code was terminated
	finished     chan struct{} // closed when it has exited and all its output was read
	helpers      sync.WaitGroup
	limit        int64

	mu    sync.Mutex
	out   *transcript // of the running or next cell
	texts [4]decoder  // of the frames and the raw streams, for stdout and stderr each
}

func launch(r *proc.Runner, c start) (*process, error) {
	p := &process{
		queue: make(chan message, 8), version: make(chan string, 1), ended: make(chan cellEnd, 1), terminated: make(chan struct{}, 1),
		finished: make(chan struct{}), out: newTranscript(c.limit), limit: c.limit,
	}
	p.frames = parser{marker: newMarker(), raw: func(b []byte) { p.addText(0, 2, b) }, frame: p.handleFrame}
	command := proc.Command{
		Path: c.path, Args: []string{"--no-force-async-hooks-checks", "-e", fmt.Sprintf(bootstrap, len(worker), c.once, p.frames.marker)},
		Dir: c.dir, Env: c.env, Stdin: c.stdin, Grace: stopGrace, Session: true,
	}
	var l pipes
	err := p.connect(&command, &l)
	if err == nil {
		p.Process, err = r.Start(command)
	}
	for _, f := range l.child {
		f.Close()
	}
	if err != nil {
		for _, f := range l.own {
			f.Close()
		}
		return nil, err
	}
	p.serve(c.once, l.own)
	return p, nil
}

// connect opens the pipes of a process.
func (p *process) connect(c *proc.Command, l *pipes) error {
	stdout, out, err := l.pipe(true)
	if err != nil {
		return err
	}
	frames, err := l.reopen(stdout)
	if err != nil {
		return err
	}
	stderr, errs, err := l.pipe(true)
	if err != nil {
		return err
	}
	if p.stdout, err = newTap(out, p.frames.feed); err != nil {
		return err
	}
	if p.stderr, err = newTap(errs, func(b []byte) { p.addText(1, 3, b) }); err != nil {
		return err
	}
	cells, own, err := l.pipe(false)
	if err != nil {
		return err
	}
	p.cells = own
	terminations, own, err := l.pipe(false)
	if err != nil {
		return err
	}
	p.terminations = own
	c.Stdout, c.Stderr, c.ExtraFiles = stdout, stderr, []*os.File{cells, frames, terminations}
	return nil
}

// serve starts the goroutines of a process, which end with it.
func (p *process) serve(once bool, files []*os.File) {
	p.helpers.Go(p.stdout.listen)
	p.helpers.Go(p.stderr.listen)
	p.helpers.Go(func() { p.write(once) })
	go func() {
		<-p.Done()
		p.stdout.drain()
		p.stderr.drain()
		p.stdout.with(p.frames.flush)
		p.mu.Lock()
		for i := range p.texts {
			p.add(i%2, p.texts[i].end())
		}
		p.mu.Unlock()
		close(p.finished)
		for _, f := range files {
			f.Close()
		}
	}()
}

// write sends the queued messages.
func (p *process) write(once bool) {
	if _, err := io.WriteString(p.cells, worker); err != nil {
		return
	}
	for {
		select {
		case m := <-p.queue:
			line, err := json.Marshal(m)
			if err != nil {
				return
			}
			if _, err := p.cells.Write(append(line, '\n')); err != nil {
				return
			}
			if once {
				p.cells.Close()
				return
			}
		case <-p.finished:
			return
		}
	}
}

// send queues a message. It drops the message if the queue is full: the process is then
// unresponsive and will be killed.
func (p *process) send(m message) {
	select {
	case p.queue <- m:
	default:
	}
}

// terminate makes the worker's second thread terminate the code.
func (p *process) terminate() {
	// If the pipe is full, a termination is already pending.
	_ = p.terminations.SetWriteDeadline(time.Now().Add(terminateTimeout))
	_, _ = p.terminations.Write([]byte{'!'})
}

// kill kills the process group and returns when its output was read.
func (p *process) kill() {
	p.Kill()
	<-p.finished
	p.helpers.Wait()
}

// stop sends TERM to the process, then kills it.
func (p *process) stop() {
	p.Stop()
	p.kill()
}

// handleFrame processes a frame.
func (p *process) handleFrame(kind byte, begins, ends bool, data []byte) {
	if kind == 'o' {
		p.addText(0, 0, data)
		return
	}
	// Output of programs that have exited comes first.
	p.stderr.drain()
	if kind == 'e' {
		p.addText(1, 1, data)
		return
	}
	if begins {
		p.message = p.message[:0]
	}
	if len(p.message) < maxMessage {
		p.message = append(p.message, data...)
	}
	if ends {
		p.handleMessage(kind, p.message)
	}
}

// handleMessage processes a complete message.
func (p *process) handleMessage(kind byte, b []byte) {
	switch kind {
	case 'r':
		select {
		case p.version <- string(b):
		default:
		}
	case 'i':
		select {
		case p.terminated <- struct{}{}:
		default:
		}
	case 'v':
		text := string(b)
		if len(b) >= maxMessage {
			text = string(firstBytes(b, maxMessage)) + "\n[... the rest of the value is omitted ...]"
		}
		p.addOutput(result(text))
	case 'x':
		var e struct {
			Name      string   `json:"ename"`
			Value     string   `json:"evalue"`
			Traceback []string `json:"traceback"`
		}
		if json.Unmarshal(b, &e) != nil {
			p.addOutput(failure("Error", "the description of the thrown error is too long to be shown"))
			return
		}
		p.addOutput(output{Type: kernel.Error, EName: e.Name, EValue: e.Value, Traceback: e.Traceback})
	case 'd':
		var e cellEnd
		if json.Unmarshal(b, &e) == nil {
			select {
			case p.ended <- e:
			default: // the cell was abandoned
			}
		}
	}
}

// addText adds text of a stream, read from one of two sources.
func (p *process) addText(which, source int, b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(which, p.texts[source].text(b))
}

// add adds text of a stream. The lock is held.
func (p *process) add(which int, text string) {
	if text != "" {
		p.out.add(stream([]string{"stdout", "stderr"}[which], text))
	}
}

func (p *process) addOutput(o output) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.add(o)
}

// transcript returns the transcript of the starting cell. It includes output since the end of
// the previous cell.
func (p *process) transcript() *transcript {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// nextTranscript returns a cell's transcript and begins the next one.
func (p *process) nextTranscript() *transcript {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.out
	p.out = newTranscript(p.limit)
	return old
}

// hasExited reports whether the process has exited.
func (p *process) hasExited() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// interrupt signals the programs that the code started and waits for. The process itself
// ignores the signal.
func (p *process) interrupt() { _ = p.Signal(syscall.SIGINT) }
