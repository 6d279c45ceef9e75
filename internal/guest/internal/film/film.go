// Package film makes videos of pictures that come at any time: the latest one is encoded at a steady rate.
//
// It owns the encoder, which is ffmpeg, and the goroutine that feeds it. Where the pictures come from is up to the caller.
package film

import (
	"context"
	"io"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// Longest is how long a film may be.
const Longest = time.Hour

// Film is one video.
type Film struct {
	Path    string // .webm, or anything else for MP4
	fps     int
	limit   time.Duration
	process *proc.Process
	input   *io.PipeWriter
	output  *proc.Capture
	life    context.Context
	cancel  context.CancelFunc
	done    chan struct{} // closed when the file is complete
	err     error         // set before done is closed

	mu      sync.Mutex
	picture []byte // the latest
	frames  int
	paused  bool
	stopped bool
}

// New returns a film that has not begun.
func New(path string, fps int, limit time.Duration) *Film {
	f := &Film{Path: path, fps: fps, limit: min(limit, Longest), done: make(chan struct{}), output: proc.NewCapture(1<<10, 4<<10)}
	f.life, f.cancel = context.WithTimeout(context.Background(), Longest+time.Minute)
	return f
}

// Begin starts the encoder with a first picture. ended is called when the film is over, before its file is said to be complete.
func (f *Film) Begin(runner *proc.Runner, first []byte, ended func()) error {
	reader, writer := io.Pipe()
	f.picture, f.input = first, writer
	var err error
	f.process, err = runner.Start(proc.Command{Path: "ffmpeg", Args: f.encoderArgs(), Stdin: reader, Stdout: f.output, Stderr: f.output})
	if err != nil {
		reader.Close()
		return op.Errorf(op.Unavailable, "cannot start ffmpeg: %w", err)
	}
	go func() {
		defer close(f.done)
		defer ended()
		f.write()
		reader.Close()
	}()
	return nil
}

// Life ends when no more pictures are wanted.
func (f *Film) Life() context.Context { return f.life }

// Show makes a picture the latest.
func (f *Film) Show(picture []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.picture = picture
}

// Fail ends a film that could not begin.
func (f *Film) Fail(err error) {
	f.err = err
	f.markStopped()
	f.cancel()
	close(f.done)
}

// Done is closed when the file is complete.
func (f *Film) Done() <-chan struct{} { return f.done }

// Err is why the film failed, after Done.
func (f *Film) Err() error { return f.err }

func (f *Film) encoderArgs() []string {
	rate := strconv.Itoa(f.fps)
	args := []string{
		"-hide_banner", "-loglevel", "error", "-y", "-f", "image2pipe", "-c:v", "mjpeg", "-framerate", rate, "-i", "pipe:0",
		"-vf", "scale=trunc(iw/2)*2:trunc(ih/2)*2", "-pix_fmt", "yuv420p", "-threads", "1",
	}
	if strings.EqualFold(filepath.Ext(f.Path), ".webm") {
		args = append(args, "-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-b:v", "2M", "-f", "webm")
	} else {
		args = append(args, "-c:v", "libx264", "-preset", "ultrafast", "-g", rate, "-movflags",
			"+frag_keyframe+empty_moov+default_base_moof", "-f", "mp4")
	}
	return append(args, "file:"+f.Path)
}

// write sends the latest picture to the encoder at the rate of the video, until the film is over.
func (f *Film) write() {
	tick := time.NewTicker(time.Second / time.Duration(f.fps))
	defer tick.Stop()
	total := max(int(f.limit.Seconds()*float64(f.fps)+0.5), 1)
	for {
		f.mu.Lock()
		stopped, paused, picture, frames := f.stopped, f.paused, f.picture, f.frames
		f.mu.Unlock()
		if frames >= total || stopped && frames > 0 || f.life.Err() != nil {
			break
		}
		if !paused || frames == 0 {
			if _, err := f.input.Write(picture); err != nil {
				break // the encoder has failed
			}
			f.mu.Lock()
			f.frames++
			f.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-f.process.Done():
		case <-f.life.Done():
		}
	}
	f.markStopped()
	f.cancel()
	f.input.Close()
	wait, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := f.process.Wait(wait); err != nil {
		f.process.Kill()
	}
	if exit := f.process.Exit(); exit.Code != 0 {
		f.err = op.Errorf(op.Unavailable, "the encoder failed: %s", proc.LastLine(f.output.Bytes()))
	}
}

func (f *Film) markStopped() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
}

// HasStopped reports whether the file is complete.
func (f *Film) HasStopped() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// SetPaused pauses or resumes a film; false if it is over.
func (f *Film) SetPaused(on bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stopped {
		return false
	}
	f.paused = on
	return true
}

// Stop ends the film and waits until the file is complete.
func (f *Film) Stop() {
	f.markStopped()
	<-f.done
}

// State is recording, paused or stopped, and what the film has so far.
func (f *Film) State() (state string, frames int, seconds float64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	state = "recording"
	switch {
	case f.HasStopped():
		state = "stopped"
	case f.paused:
		state = "paused"
	}
	return state, f.frames, float64(f.frames) / float64(f.fps)
}
