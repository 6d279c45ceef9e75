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
	// nudgeTime is how long it may take to send an interrupt.
	nudgeTime = 250 * time.Millisecond
	// maxMessage limits a value or an error.
	maxMessage = 4 << 20
)

// bootstrap reads the worker from descriptor 3 and calls it, so that there is no file that
// someone could change. It passes import, which works only in the script that contains it.
const bootstrap = `{const fs=require("fs"),b=Buffer.alloc(%d);for(let n=0;n<b.length;)n+=fs.readSync(3,b,n,b.length-n,null);` +
	`require("vm").runInThisContext(b.toString(),{filename:"cove:worker"})(%t,"%x",(n,o)=>o?import(n,o):import(n))}`

// start is how to start a process.
type start struct {
	path  string // of Node.js
	dir   string
	env   []string
	once  bool
	stdin io.Reader // nil: none
	limit int64     // bytes of a cell's output that are kept
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

// ending is how a cell ended.
type ending struct {
	ID     int    `json:"id"`
	Status string `json:"status"` // ok, error, interrupted, waiting
	Cwd    string `json:"cwd"`
}

// process is a running Node.js with the worker in it. It owns its pipes and the
// goroutines that read them; all end with it.
type process struct {
	*proc.Process
	cells, nudges *os.File // our ends of descriptors 3 and 5
	stdout        *tap     // with the worker's frames in it
	stderr        *tap
	frames        parser
	message       []byte // the start of one that needs several frames
	queue         chan message
	version       chan string // has an element once the worker runs
	ended         chan ending
	struck        chan struct{} // has an element once the code was told to stop
	gone          chan struct{} // closed when it has exited and all its output was read
	helpers       sync.WaitGroup
	limit         int64

	mu    sync.Mutex
	out   *transcript // of the cell that runs, or of the next
	texts [4]decoder  // of frames and of the streams themselves, stdout and stderr each
}

func launch(r *proc.Runner, c start) (*process, error) {
	p := &process{
		queue: make(chan message, 8), version: make(chan string, 1), ended: make(chan ending, 1), struck: make(chan struct{}, 1),
		gone: make(chan struct{}), out: newTranscript(c.limit), limit: c.limit,
	}
	p.frames = parser{sign: newSign(), raw: func(b []byte) { p.addText(0, 2, b) }, frame: p.handleFrame}
	command := proc.Command{
		Path: c.path, Args: []string{"--no-force-async-hooks-checks", "-e", fmt.Sprintf(bootstrap, len(worker), c.once, p.frames.sign)},
		Dir: c.dir, Env: c.env, Stdin: c.stdin, Grace: stopGrace, Session: true,
	}
	var l pipes
	err := p.connect(&command, &l)
	if err == nil {
		p.Process, err = r.Start(command)
	}
	for _, f := range l.theirs {
		f.Close()
	}
	if err != nil {
		for _, f := range l.ours {
			f.Close()
		}
		return nil, err
	}
	p.serve(c.once, l.ours)
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
	nudges, own, err := l.pipe(false)
	if err != nil {
		return err
	}
	p.nudges = own
	c.Stdout, c.Stderr, c.ExtraFiles = stdout, stderr, []*os.File{cells, frames, nudges}
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
		close(p.gone)
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
		case <-p.gone:
			return
		}
	}
}

// send queues a message. If the process does not read for long, it will be killed, so the
// message may be lost.
func (p *process) send(m message) {
	select {
	case p.queue <- m:
	default:
	}
}

// terminate makes the thread beside the code stop the code.
func (p *process) terminate() {
	// A full pipe holds enough of them.
	_ = p.nudges.SetWriteDeadline(time.Now().Add(nudgeTime))
	_, _ = p.nudges.Write([]byte{'!'})
}

// kill kills the process with all that it started, and returns when its last output was
// read.
func (p *process) kill() {
	p.Kill()
	<-p.gone
	p.helpers.Wait()
}

// stop asks the process to exit, then kills it.
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
	// What a program that has exited wrote to stderr comes first.
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
		case p.struck <- struct{}{}:
		default:
		}
	case 'v':
		text := string(b)
		if len(b) >= maxMessage {
			text = string(firstBytes(b, maxMessage)) + "\n[... the rest of the value is left out ...]"
		}
		p.addOutput(result(text))
	case 'x':
		var e struct {
			Name      string   `json:"ename"`
			Value     string   `json:"evalue"`
			Traceback []string `json:"traceback"`
		}
		if json.Unmarshal(b, &e) != nil {
			p.addOutput(failure("Error", "an error was thrown whose description is too long to be shown"))
			return
		}
		p.addOutput(output{Type: kernel.Error, EName: e.Name, EValue: e.Value, Traceback: e.Traceback})
	case 'd':
		var e ending
		if json.Unmarshal(b, &e) == nil {
			select {
			case p.ended <- e:
			default: // nobody waits for an abandoned cell
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

// transcript returns that of the cell that starts. It includes output since the last one,
// which nobody has seen.
func (p *process) transcript() *transcript {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out
}

// nextTranscript returns a cell's transcript and starts the next one.
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
