package isolate

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ErrNotSaved means that a program cannot be saved as it is now. It goes on.
var ErrNotSaved = errors.New("cannot save the processes")

// Save has gVisor write the memory and the processes of a sandbox to the folder image, which
// must belong to root inside, by way of its control socket; see Dial. If that succeeds, the
// sandbox ends, even if nobody waits for the answer; otherwise it goes on.
func Save(ctx context.Context, dir *os.File, name string, image *os.File) error {
	c, err := DialUnix(ctx, dir, name)
	if err != nil {
		return err
	}
	defer c.Close()
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	if _, _, err := c.WriteMsgUnix([]byte{0, 0}, unix.UnixRights(int(image.Fd())), nil); err != nil {
		return fmt.Errorf("save: %w", err)
	}
	answer := make([]byte, maxSaveError+1)
	n, err := io.ReadAtLeast(c, answer, 1)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return fmt.Errorf("save: %w", err)
	case answer[0] == saved:
		return nil
	case answer[0] == refused:
		return fmt.Errorf("%w: %s", ErrNotSaved, answer[1:n])
	}
	return fmt.Errorf("%w: its init is of an older version; stop and start it", ErrNotSaved)
}

// maxSaveError bounds what is told of an error.
const maxSaveError = 400

// answerSave saves the program in the folder that was sent.
func (i *initProcess) answerSave(c *net.UnixConn, oob []byte) {
	i.helpers.answers.Add(1)
	defer i.helpers.answers.Done()
	err := i.save(oob)
	if err == nil {
		c.Write([]byte{saved})
		return
	}
	text := err.Error()
	c.Write(append([]byte{refused}, text[:min(len(text), maxSaveError)]...))
}

func (i *initProcess) save(oob []byte) error {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil || len(msgs) != 1 {
		return errors.New("no folder was sent")
	}
	fds, err := unix.ParseUnixRights(&msgs[0])
	if err != nil || len(fds) != 1 {
		return errors.New("no folder was sent")
	}
	defer unix.Close(fds[0])
	if !i.runtime {
		return errors.New("only gVisor can")
	}
	// It stands still meanwhile, and from then on until it is killed: otherwise it could change
	// files that it finds as they were when it is restored. gVisor would kill it itself if it
	// were not told to leave it running, but also after an error.
	if err := i.help(nil, "pause"); err != nil {
		return err
	}
	const folder = 3 // the descriptor in the command
	err = i.help([]uintptr{uintptr(fds[0])}, "checkpoint", "--leave-running", "--exclude-committed-zero-pages",
		fmt.Sprintf("--image-path=/proc/self/fd/%d", folder))
	if err != nil {
		return errors.Join(err, i.help(nil, "resume"))
	}
	i.helpers.markSaved()
	return syscall.Kill(i.pid, unix.SIGKILL)
}

// help runs a command of gVisor, with more files, and returns what it says if it fails.
func (i *initProcess) help(files []uintptr, verb string, args ...string) error {
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	defer w.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	ended, err := i.helpers.start(gvisorCommand(verb, args...), append([]uintptr{null.Fd(), w.Fd(), w.Fd()}, files...))
	if err != nil {
		return err
	}
	w.Close()
	said, _ := io.ReadAll(io.LimitReader(r, maxSaveError))
	go io.Copy(io.Discard, r)
	if ws := <-ended; ws.ExitStatus() != 0 {
		line, _, _ := strings.Cut(string(said), "\n")
		return fmt.Errorf("%s: %s", verb, strings.TrimSpace(line))
	}
	return nil
}

// helpers are the processes that init starts beside the program. One loop reaps all of its
// children.
type helpers struct {
	mu      sync.Mutex
	ended   map[int]chan syscall.WaitStatus
	saved   bool           // the program was saved, and is about to end
	answers sync.WaitGroup // to whoever asked
}

// start runs a program and returns how it ends.
func (h *helpers) start(args []string, files []uintptr) (<-chan syscall.WaitStatus, error) {
	h.mu.Lock() // it may end before we know its PID
	defer h.mu.Unlock()
	pid, err := syscall.ForkExec(args[0], args, &syscall.ProcAttr{Dir: "/", Env: []string{"PATH=/usr/bin:/bin"}, Files: files})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	ended := make(chan syscall.WaitStatus, 1)
	if h.ended == nil {
		h.ended = map[int]chan syscall.WaitStatus{}
	}
	h.ended[pid] = ended
	return ended, nil
}

// end notes that a child has been reaped.
func (h *helpers) end(pid int, ws syscall.WaitStatus) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if ended := h.ended[pid]; ended != nil {
		ended <- ws
		delete(h.ended, pid)
	}
}

func (h *helpers) markSaved() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saved = true
}

// finish waits for those that run when the program has ended, and reports whether the program
// was saved.
func (h *helpers) finish() bool {
	for h.count() > 0 {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		if err == nil {
			h.end(pid, ws)
		} else if err != syscall.EINTR {
			break
		}
	}
	h.answers.Wait()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.saved
}

func (h *helpers) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.ended)
}
