package capture

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

// maxDuration is the maximum duration of a video.
const maxDuration = time.Hour

// video encodes images that arrive at any time: the latest one is encoded at a steady rate. It owns the encoder, which is
// ffmpeg, and the goroutine that feeds it.
type video struct {
	path    string // .webm, or anything else for MP4
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
	image   []byte // the latest
	frames  int
	paused  bool
	stopped bool
}

// newVideo returns a video that has not started.
func newVideo(path string, fps int, limit time.Duration) *video {
	v := &video{path: path, fps: fps, limit: min(limit, maxDuration), done: make(chan struct{}), output: proc.NewCapture(1<<10, 4<<10)}
	v.life, v.cancel = context.WithTimeout(context.Background(), maxDuration+time.Minute)
	return v
}

// begin starts the encoder with a first image. ended is called after the last image, before done is closed.
func (v *video) begin(runner *proc.Runner, first []byte, ended func()) error {
	reader, writer := io.Pipe()
	v.image, v.input = first, writer
	var err error
	v.process, err = runner.Start(proc.Command{Path: "ffmpeg", Args: v.encoderArgs(), Stdin: reader, Stdout: v.output, Stderr: v.output})
	if err != nil {
		reader.Close()
		return op.Errorf(op.Unavailable, "cannot start ffmpeg: %w", err)
	}
	go func() {
		defer close(v.done)
		defer ended()
		v.write()
		reader.Close()
	}()
	return nil
}

// show makes an image the latest.
func (v *video) show(image []byte) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.image = image
}

// fail ends a video that could not start.
func (v *video) fail(err error) {
	v.err = err
	v.markStopped()
	v.cancel()
	close(v.done)
}

func (v *video) encoderArgs() []string {
	rate := strconv.Itoa(v.fps)
	args := []string{
		"-hide_banner", "-loglevel", "error", "-y", "-f", "image2pipe", "-c:v", "mjpeg", "-framerate", rate, "-i", "pipe:0",
		"-vf", "scale=trunc(iw/2)*2:trunc(ih/2)*2", "-pix_fmt", "yuv420p", "-threads", "1",
	}
	if strings.EqualFold(filepath.Ext(v.path), ".webm") {
		args = append(args, "-c:v", "libvpx", "-deadline", "realtime", "-cpu-used", "8", "-b:v", "2M", "-f", "webm")
	} else {
		args = append(args, "-c:v", "libx264", "-preset", "ultrafast", "-g", rate, "-movflags",
			"+frag_keyframe+empty_moov+default_base_moof", "-f", "mp4")
	}
	return append(args, "file:"+v.path)
}

// write sends the latest image to the encoder at the frame rate until the video ends.
func (v *video) write() {
	tick := time.NewTicker(time.Second / time.Duration(v.fps))
	defer tick.Stop()
	total := max(int(v.limit.Seconds()*float64(v.fps)+0.5), 1)
	for {
		v.mu.Lock()
		stopped, paused, image, frames := v.stopped, v.paused, v.image, v.frames
		v.mu.Unlock()
		if frames >= total || stopped && frames > 0 || v.life.Err() != nil {
			break
		}
		if !paused || frames == 0 {
			if _, err := v.input.Write(image); err != nil {
				break // the encoder has failed
			}
			v.mu.Lock()
			v.frames++
			v.mu.Unlock()
		}
		select {
		case <-tick.C:
		case <-v.process.Done():
		case <-v.life.Done():
		}
	}
	v.markStopped()
	v.cancel()
	v.input.Close()
	wait, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if _, err := v.process.Wait(wait); err != nil {
		v.process.Kill()
	}
	if exit := v.process.Exit(); exit.Code != 0 {
		v.err = op.Errorf(op.Unavailable, "the encoder failed: %s", proc.LastLine(v.output.Bytes()))
	}
}

func (v *video) markStopped() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stopped = true
}

// hasStopped reports whether the file is complete.
func (v *video) hasStopped() bool {
	select {
	case <-v.done:
		return true
	default:
		return false
	}
}

// setPaused pauses or resumes a video; false if it has ended.
func (v *video) setPaused(on bool) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.stopped {
		return false
	}
	v.paused = on
	return true
}

// stop ends the video and waits until the file is complete.
func (v *video) stop() {
	v.markStopped()
	<-v.done
}

// state returns recording, paused or stopped, and the length of the video so far.
func (v *video) state() (state string, frames int, seconds float64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	state = "recording"
	switch {
	case v.hasStopped():
		state = "stopped"
	case v.paused:
		state = "paused"
	}
	return state, v.frames, float64(v.frames) / float64(v.fps)
}
