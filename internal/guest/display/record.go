package display

import (
	"context"
	"errors"
	"fmt"
	"image"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/op"
	"github.com/cove-sandbox/cove/internal/proc"
)

// RecordIn says what to do.
type RecordIn struct {
	Action      string  `json:"action" doc:"Start or stop the recording, or tell how it goes" enum:"start,stop,status"`
	SavePath    *string `json:"save_path" doc:"File for the video; missing: a new one in Videos below the home folder"`
	FPS         int     `json:"fps" doc:"Pictures a second" exclusiveMinimum:"0" maximum:"30" default:"5"`
	CRF         int     `json:"crf" doc:"Compression of H.264: 0 loses nothing, 51 is the smallest" minimum:"0" maximum:"51" default:"28"`
	MaxDuration float64 `json:"max_duration" doc:"Seconds after which it stops by itself" exclusiveMinimum:"0" default:"600"`
	Width       *int    `json:"width" doc:"Width of the video; missing: as the display, or in proportion to the height" exclusiveMinimum:"0"`
	Height      *int    `json:"height" doc:"Height of the video; missing: as the display, or in proportion to the width" exclusiveMinimum:"0"`
}

// Recording tells how a recording stands.
type Recording struct {
	Status   string  `json:"status" doc:"idle, recording or stopped"`
	SavePath *string `json:"save_path" doc:"File of the video"`
	Duration float64 `json:"duration" doc:"Seconds recorded so far"`
	Size     *int64  `json:"file_size_bytes" doc:"Size of the file"`
}

// Bounds of a recording.
const (
	maxRecording = 24 * time.Hour
	maxSide      = 8192             // of a video: H.264 knows no larger one at any level that players take
	firstFrame   = 15 * time.Second // how long the recorder may take to write the first picture
	lastFrame    = 10 * time.Second // how long it may take to write the last one
)

// recorder holds the one recording that may run, and the last that did.
type recorder struct {
	turn sync.Mutex // held by start and stop, which take their time

	mu   sync.Mutex // guards the rest
	take *take
	over bool
}

// take is one recording.
type take struct {
	path    string
	area    image.Point // what is filmed
	limit   time.Duration
	began   atomic.Int64 // when the first picture was taken, in Unix nanoseconds
	process *proc.Process
	said    *proc.Capture
	release func()
	asked   bool // guarded by recorder.mu
	ended   chan struct{}
	length  time.Duration // set before ended is closed
	why     error         // why it ended by itself before its time; the same
}

// Record starts, stops or describes the recording.
func (s *Service) Record(ctx context.Context, in RecordIn) (Recording, error) {
	switch in.Action {
	case "start":
		return s.startRecording(ctx, in)
	case "stop":
		return s.stopRecording(ctx)
	}
	t := s.record.current()
	if t == nil {
		return Recording{Status: "idle"}, nil
	}
	return t.describe(ctx), nil
}

func (r *recorder) current() *take {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.take
}

// running is the recording that goes on, or nil.
func (r *recorder) running() *take {
	t := r.current()
	if t == nil || t.over() {
		return nil
	}
	return t
}

func (t *take) age() time.Duration { return time.Since(time.Unix(0, t.began.Load())) }

func (t *take) over() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// fits refuses a display that is smaller than the area that is being filmed: the recorder would fail.
func (r *recorder) fits(size Resolution) error {
	if t := r.running(); t != nil && (size.Width < t.area.X || size.Height < t.area.Y) {
		return op.Errorf(op.Conflict, "a recording of %dx%d is running, and the display cannot become smaller than that: stop the recording first", t.area.X, t.area.Y)
	}
	return nil
}

func (s *Service) startRecording(ctx context.Context, in RecordIn) (Recording, error) {
	r := &s.record
	r.turn.Lock()
	defer r.turn.Unlock()
	if t := r.running(); t != nil {
		return Recording{}, &op.Error{Code: op.Conflict, Data: t.describe(ctx),
			Msg: fmt.Sprintf("a recording to %s is running since %.0f seconds; stop it first", t.path, t.age().Seconds())}
	}
	if _, ok := s.cfg.Runner.Look("ffmpeg"); !ok {
		return Recording{}, op.Errorf(op.Unavailable, "recording needs ffmpeg, which is not installed; install the package ffmpeg")
	}
	path, err := s.videoPath(in.SavePath)
	if err != nil {
		return Recording{}, err
	}
	d, release, err := s.hold(ctx)
	if err != nil {
		return Recording{}, err
	}
	s.tell(ctx)
	size, err := d.conn.Size(ctx)
	if err != nil {
		release()
		return Recording{}, s.explain(ctx, err)
	}
	video, err := videoSize(in, size)
	if err != nil {
		release()
		return Recording{}, err
	}
	limit := time.Duration(min(in.MaxDuration, maxRecording.Seconds()) * float64(time.Second))
	t, err := s.film(d, in, path, size, video, limit)
	if err != nil {
		release()
		return Recording{}, err
	}
	t.release = release
	r.mu.Lock()
	r.take = t
	closed := r.over
	r.mu.Unlock()
	go r.follow(t)
	if closed {
		r.end(t)
	}
	if err := t.firstPicture(ctx); err != nil {
		r.end(t)
		return Recording{}, err
	}
	op.Say(ctx, "Recording %dx%d to %s", video.X, video.Y, path)
	return t.describe(ctx), nil
}

// videoPath is where the video goes; the folder is made.
func (s *Service) videoPath(given *string) (string, error) {
	name := "~/Videos/recording-" + time.Now().Format("20060102-150405.000") + ".mp4"
	if given != nil && *given != "" {
		name = *given
	}
	path, err := s.base.Resolve(name)
	if err != nil {
		return "", op.Errorf(op.Invalid, "save_path cannot be used: %w", err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", op.Errorf(op.Invalid, "save_path %s is no file; name one for the video, such as %s", path, filepath.Join(path, "recording.mp4"))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", op.Errorf(op.Denied, "the folder for the video cannot be made: %w", err)
	}
	return path, nil
}

// videoSize fills in what was not said, and rounds to the even numbers that H.264 needs.
func videoSize(in RecordIn, screen image.Point) (image.Point, error) {
	size := screen
	switch {
	case in.Width != nil && in.Height != nil:
		size = image.Pt(*in.Width, *in.Height)
	case in.Width != nil:
		size = image.Pt(*in.Width, *in.Width*screen.Y/screen.X)
	case in.Height != nil:
		size = image.Pt(*in.Height*screen.X/screen.Y, *in.Height)
	}
	size = image.Pt(size.X&^1, size.Y&^1)
	if min(size.X, size.Y) < 16 || max(size.X, size.Y) > maxSide {
		return size, op.Errorf(op.Invalid, "a video of %dx%d cannot be made; choose sides from 16 to %d", size.X, size.Y, maxSide)
	}
	return size, nil
}

// film starts the recorder. Pictures are grouped into seconds, each written as a whole: whatever happens, all but the last
// one can be played.
func (s *Service) film(d *desktop, in RecordIn, path string, area, video image.Point, limit time.Duration) (*take, error) {
	fps := strconv.Itoa(in.FPS)
	t := &take{path: path, area: area, limit: limit, said: proc.NewCapture(1<<10, 4<<10), ended: make(chan struct{})}
	t.began.Store(time.Now().UnixNano())
	args := []string{
		"-hide_banner", "-loglevel", "error", "-nostdin", "-y",
		"-f", "x11grab", "-framerate", fps, "-draw_mouse", "1", "-video_size", fmt.Sprintf("%dx%d", area.X, area.Y), "-i", d.display(),
		"-vf", fmt.Sprintf("scale=%d:%d", video.X, video.Y), "-r", fps,
		"-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-crf", strconv.Itoa(in.CRF), "-pix_fmt", "yuv420p",
		"-g", fps, "-threads", "1", "-movflags", "+frag_keyframe+empty_moov+default_base_moof", "-flush_packets", "1",
		"-t", strconv.FormatFloat(limit.Seconds(), 'f', 3, 64), "-f", "mp4", "file:" + path,
	}
	p, err := s.cfg.Runner.Start(proc.Command{
		Path: "ffmpeg", Args: args, Env: append(s.cfg.Runner.Environ(), d.env...), Stdout: t.said, Stderr: t.said,
	})
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "ffmpeg does not start: %w", err)
	}
	t.process = p
	return t, nil
}

func (d *desktop) display() string { return ":" + strconv.Itoa(d.number) }

// firstPicture waits until the file has begun, so that a start that is answered is one that films.
func (t *take) firstPicture(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstFrame)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began := time.Unix(0, t.began.Load()).Add(-50 * time.Millisecond) // the clock of files is coarse
	for {
		if info, err := os.Stat(t.path); err == nil && info.Size() > 0 && !info.ModTime().Before(began) {
			t.began.Store(time.Now().UnixNano())
			return nil
		}
		select {
		case <-tick.C:
		case <-t.ended:
			return op.Errorf(op.Unavailable, "the recording did not start: %s", lastLine(t.said.Bytes()))
		case <-ctx.Done():
			return op.Errorf(op.Unavailable, "the recorder wrote nothing within %v; the machine may be overloaded: try again", firstFrame)
		}
	}
}

// follow waits for the end of a recording. The recorder keeps the time itself; one that does not is told at the limit.
func (r *recorder) follow(t *take) {
	defer close(t.ended)
	timer := time.AfterFunc(t.limit+firstFrame, func() { r.ask(t) })
	defer timer.Stop()
	<-t.process.Done()
	t.length = t.age()
	t.process.Stop()
	t.release()
	r.mu.Lock()
	asked := t.asked
	r.mu.Unlock()
	// A recorder that loses its display ends as if it had been asked.
	if !asked && (t.process.Exit().Code != 0 || t.length < t.limit-time.Second) {
		t.why = fmt.Errorf("the recorder %v: %s", t.process.Exit(), lastLine(t.said.Bytes()))
	}
}

// ask tells the recorder to finish the file.
func (r *recorder) ask(t *take) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.asked {
		t.asked = true
		// It may have ended by itself just now, which is as good.
		_ = t.process.Signal(syscall.SIGINT)
	}
}

// end stops a recording and waits until its file is complete.
func (r *recorder) end(t *take) {
	r.ask(t)
	timer := time.NewTimer(lastFrame)
	defer timer.Stop()
	select {
	case <-t.ended:
	case <-timer.C: // the file is good without its end
		t.process.Kill()
		<-t.ended
	}
}

func (s *Service) stopRecording(ctx context.Context) (Recording, error) {
	r := &s.record
	r.turn.Lock()
	defer r.turn.Unlock()
	t := r.current()
	if t == nil {
		return Recording{}, op.Errorf(op.Conflict, "nothing is being recorded; start a recording first")
	}
	again := t.over()
	r.end(t)
	d := t.describe(ctx)
	if again {
		op.Say(ctx, "The recording had ended already")
	} else {
		op.Say(ctx, "Recorded %.1f seconds to %s", d.Duration, t.path)
	}
	return d, nil
}

func (t *take) describe(ctx context.Context) Recording {
	out := Recording{Status: "recording", SavePath: &t.path, Duration: t.age().Seconds()}
	if t.over() {
		out.Status, out.Duration = "stopped", t.length.Seconds()
		if t.why != nil {
			hintf(ctx, "The recording ended before its time: %v. What was recorded until then can be played.", t.why)
		}
	}
	if info, err := os.Stat(t.path); err == nil {
		out.Size = new(info.Size())
	} else if errors.Is(err, os.ErrNotExist) && out.Status == "stopped" {
		hintf(ctx, "The file of the recording was removed.")
	}
	return out
}

// close ends the recording for good.
func (r *recorder) close() {
	r.mu.Lock()
	r.over = true
	t := r.take
	r.mu.Unlock()
	if t != nil {
		r.end(t)
	}
}
