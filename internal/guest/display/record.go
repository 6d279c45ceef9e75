package display

import (
	"bytes"
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

	"golang.org/x/sys/unix"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// RecordIn is the input of Record.
type RecordIn struct {
	Action      string  `json:"action" doc:"Start or stop the recording, or get its status" enum:"start,stop,status"`
	SavePath    *string `json:"save_path" doc:"Path of the video; default: a new file in /tmp/recordings"`
	FPS         int     `json:"fps" doc:"Frames per second" exclusiveMinimum:"0" maximum:"30" default:"5"`
	CRF         int     `json:"crf" doc:"H.264 constant rate factor: 0 is lossless, 51 is smallest" minimum:"0" maximum:"51" default:"28"`
	MaxDuration float64 `json:"max_duration" doc:"Seconds after which the recording stops" exclusiveMinimum:"0" default:"600"`
	Width       *int    `json:"width" doc:"Width of the video; default: proportional, or display width" exclusiveMinimum:"0"`
	Height      *int    `json:"height" doc:"Height of the video; default: proportional, or display height" exclusiveMinimum:"0"`
}

// Recording is the status of a recording.
type Recording struct {
	Status   string  `json:"status" doc:"idle, recording or stopped"`
	SavePath *string `json:"save_path" doc:"Path of the video"`
	Duration float64 `json:"duration" doc:"Seconds recorded so far"`
	Size     *int64  `json:"file_size_bytes" doc:"Size of the file in bytes"`
}

// Bounds of a recording.
const (
	maxRecording = 24 * time.Hour
	maxSide      = 8192             // players support no larger H.264 video
	firstFrame   = 30 * time.Second // how long the recorder may take to write the first frame
	lastFrame    = 10 * time.Second // how long it may take to write the last frame
)

// recorder owns the current recording, or the last one.
type recorder struct {
	turn sync.Mutex // held during start and stop, which take time

	mu      sync.Mutex // guards the rest
	current *recording
	closed  bool
}

// recording is one run of the recorder.
type recording struct {
	path    string
	area    image.Point // of the display
	limit   time.Duration
	filmed  progress
	process *proc.Process
	output  *proc.Capture
	release func()
	stopped bool // a stop was requested; guarded by recorder.mu
	ended   chan struct{}
	why     error // why it ended early; set before ended is closed
}

// Record starts, stops or describes the recording.
func (s *Service) Record(ctx context.Context, in RecordIn) (Recording, error) {
	switch in.Action {
	case "start":
		return s.startRecording(ctx, in)
	case "stop":
		return s.stopRecording(ctx)
	}
	t := s.record.latest()
	if t == nil {
		return Recording{Status: "idle"}, nil
	}
	return t.describe(ctx), nil
}

func (r *recorder) latest() *recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current
}

// running is the current recording, or nil.
func (r *recorder) running() *recording {
	t := r.latest()
	if t == nil || t.hasEnded() {
		return nil
	}
	return t
}

// progress reads the progress reports of the recorder and keeps the length of the video. Wall-clock time would be wrong: on a
// busy machine, frames are written late.
type progress struct {
	length atomic.Int64 // microseconds
	rest   []byte       // start of an incomplete line
}

// Write parses lines of the form key=value, in chunks of any size.
func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		line, rest, complete := bytes.Cut(p.rest, []byte("\n"))
		if !complete {
			p.rest = append([]byte(nil), line[:min(len(line), 1<<10)]...)
			return len(b), nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("out_time_us=")); ok {
			if n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64); err == nil {
				p.length.Store(n)
			}
		}
		p.rest = rest
	}
}

func (p *progress) duration() time.Duration {
	return time.Duration(p.length.Load()) * time.Microsecond
}

func (t *recording) hasEnded() bool {
	select {
	case <-t.ended:
		return true
	default:
		return false
	}
}

// checkFits rejects a display size smaller than the recorded area: the recorder would fail.
func (r *recorder) checkFits(size Resolution) error {
	if t := r.running(); t != nil && (size.Width < t.area.X || size.Height < t.area.Y) {
		return op.Errorf(op.Conflict, "a %dx%d recording is running and the display cannot become smaller; stop "+
			"the recording first", t.area.X, t.area.Y)
	}
	return nil
}

func (s *Service) startRecording(ctx context.Context, in RecordIn) (Recording, error) {
	r := &s.record
	r.turn.Lock()
	defer r.turn.Unlock()
	if t := r.running(); t != nil {
		return Recording{}, &op.Error{Code: op.Conflict, Data: t.describe(ctx),
			Msg: fmt.Sprintf("a recording to %q has been running for %.0f seconds; stop it first", t.path, t.filmed.duration().Seconds())}
	}
	if _, ok := s.cfg.Runner.Look("ffmpeg"); !ok {
		return Recording{}, op.Errorf(op.Unavailable, "ffmpeg is not installed; install the package ffmpeg")
	}
	path, err := s.videoPath(in.SavePath)
	if err != nil {
		return Recording{}, err
	}
	d, release, err := s.hold(ctx)
	if err != nil {
		return Recording{}, err
	}
	s.hintRestart(ctx)
	size, err := d.conn.Size(ctx)
	if err != nil {
		release()
		return Recording{}, toOpError(ctx, err)
	}
	video, err := videoSize(in, size)
	if err != nil {
		release()
		return Recording{}, err
	}
	limit := op.Seconds(min(in.MaxDuration, maxRecording.Seconds()))
	began := time.Now()
	t, err := s.startRecorder(d, in, path, size, video, limit)
	if err != nil {
		release()
		return Recording{}, err
	}
	t.release = release
	r.mu.Lock()
	r.current = t
	closed := r.closed
	r.mu.Unlock()
	go r.awaitExit(t)
	if closed {
		r.stop(t)
	}
	if err := t.awaitFirstFrame(ctx, began); err != nil {
		r.stop(t)
		return Recording{}, err
	}
	op.Say(ctx, "Recording %dx%d to %s", video.X, video.Y, path)
	return t.describe(ctx), nil
}

// recordings returns the default folder of videos. Clients of the public image expect them there. If another user owns that
// path, it is a folder in the home.
func (s *Service) recordings() string {
	var st unix.Stat_t
	err := unix.Lstat(s.cfg.Recordings, &st)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid()) {
		return "~/Videos"
	}
	return s.cfg.Recordings
}

// videoPath returns the path of the video and creates its folder.
func (s *Service) videoPath(given *string) (string, error) {
	name := filepath.Join(s.recordings(), "recording_"+time.Now().Format("20060102_150405.000")+".mp4")
	if given != nil && *given != "" {
		name = *given
	}
	path, err := s.base.Resolve(name)
	if err != nil {
		return "", op.Errorf(op.Invalid, "invalid save_path: %w", err)
	}
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
		return "", op.Errorf(op.Invalid, "save_path %q is not a regular file; use a path such as %q", path,
			filepath.Join(path, "recording.mp4"))
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", op.Errorf(op.Denied, "cannot create the folder for the video: %w", err)
	}
	return path, nil
}

// videoSize fills in missing sides and rounds to even numbers, as H.264 requires.
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
		return size, op.Errorf(op.Invalid, "video size %dx%d is out of range; use sides from 16 to %d", size.X, size.Y, maxSide)
	}
	return size, nil
}

// startRecorder starts the recorder. It writes one fragment per second: even after a crash, all but the last are playable.
func (s *Service) startRecorder(d *desktop, in RecordIn, path string, area, video image.Point, limit time.Duration) (*recording, error) {
	fps := strconv.Itoa(in.FPS)
	t := &recording{path: path, area: area, limit: limit, output: proc.NewCapture(1<<10, 4<<10), ended: make(chan struct{})}
	args := []string{
		"-hide_banner", "-loglevel", "error", "-nostdin", "-y", "-progress", "pipe:1", "-stats_period", "0.2",
		"-f", "x11grab", "-framerate", fps, "-draw_mouse", "1", "-video_size", fmt.Sprintf("%dx%d", area.X, area.Y), "-i", d.display(),
		"-vf", fmt.Sprintf("scale=%d:%d", video.X, video.Y), "-r", fps,
		"-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-crf", strconv.Itoa(in.CRF), "-pix_fmt", "yuv420p",
		"-g", fps, "-threads", "1", "-movflags", "+frag_keyframe+empty_moov+default_base_moof", "-flush_packets", "1",
		"-t", strconv.FormatFloat(limit.Seconds(), 'f', 3, 64), "-f", "mp4", "file:" + path,
	}
	p, err := s.cfg.Runner.Start(proc.Command{
		Path: "ffmpeg", Args: args, Env: append(s.cfg.Runner.Environ(), d.env...), Stdout: &t.filmed, Stderr: t.output,
	})
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "cannot start ffmpeg: %w", err)
	}
	t.process = p
	return t, nil
}

func (d *desktop) display() string { return ":" + strconv.Itoa(d.number) }

// awaitFirstFrame waits until the file has content, so that a successful start means that frames are recorded.
func (t *recording) awaitFirstFrame(ctx context.Context, began time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, firstFrame)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	began = began.Add(-50 * time.Millisecond) // file timestamps are coarse
	for {
		if info, err := os.Stat(t.path); err == nil && info.Size() > 0 && !info.ModTime().Before(began) {
			return nil
		}
		select {
		case <-tick.C:
		case <-t.ended:
			return op.Errorf(op.Unavailable, "the recorder failed to start: %s", proc.LastLine(t.output.Bytes()))
		case <-ctx.Done():
			return op.Errorf(op.Unavailable, "the recorder wrote no frame within %v: the machine may be overloaded; retry later", firstFrame)
		}
	}
}

// awaitExit waits for the end of a recording. The recorder ends after the limit; otherwise awaitExit stops it.
func (r *recorder) awaitExit(t *recording) {
	defer close(t.ended)
	timer := time.AfterFunc(t.limit+firstFrame, func() { r.requestStop(t) })
	defer timer.Stop()
	<-t.process.Done()
	t.process.Stop()
	t.release()
	r.mu.Lock()
	stopped := t.stopped
	r.mu.Unlock()
	// A recorder that loses its display exits with success.
	if !stopped && (t.process.Exit().Code != 0 || t.filmed.duration() < t.limit-time.Second) {
		t.why = fmt.Errorf("the recorder %v: %s", t.process.Exit(), proc.LastLine(t.output.Bytes()))
	}
}

// requestStop makes the recorder complete the file and exit.
func (r *recorder) requestStop(t *recording) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !t.stopped {
		t.stopped = true
		// An error means that the recorder has ended already.
		_ = t.process.Signal(syscall.SIGINT)
	}
}

// stop stops a recording and waits until its file is complete.
func (r *recorder) stop(t *recording) {
	r.requestStop(t)
	timer := time.NewTimer(lastFrame)
	defer timer.Stop()
	select {
	case <-t.ended:
	case <-timer.C: // the file is playable without its last fragment
		t.process.Kill()
		<-t.ended
	}
}

func (s *Service) stopRecording(ctx context.Context) (Recording, error) {
	r := &s.record
	r.turn.Lock()
	defer r.turn.Unlock()
	t := r.latest()
	if t == nil {
		return Recording{}, op.Errorf(op.Conflict, "no recording is running; start a recording first")
	}
	ended := t.hasEnded()
	r.stop(t)
	d := t.describe(ctx)
	if ended {
		op.Say(ctx, "The recording had already ended")
	} else {
		op.Say(ctx, "Recorded %.1f seconds to %s", d.Duration, t.path)
	}
	return d, nil
}

func (t *recording) describe(ctx context.Context) Recording {
	out := Recording{Status: "recording", SavePath: &t.path, Duration: t.filmed.duration().Seconds()}
	if t.hasEnded() {
		out.Status = "stopped"
		if t.why != nil {
			addHint(ctx, "The recording ended early: %v. The part recorded so far is playable.", t.why)
		}
	}
	if info, err := os.Stat(t.path); err == nil {
		out.Size = new(info.Size())
	} else if errors.Is(err, os.ErrNotExist) && out.Status == "stopped" {
		addHint(ctx, "The video file was removed.")
	}
	return out
}

// close stops the recording and prevents others.
func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	t := r.current
	r.mu.Unlock()
	if t != nil {
		r.stop(t)
	}
}
