package display_test

import (
	"encoding/json"
	"fmt"
	"image"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/display"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// record calls the operation with its defaults.
func record(t testing.TB, s *display.Service, body string) (display.Recording, *op.Call, error) {
	t.Helper()
	o, _ := op.NewTable(s.Ops()).Get("display_record")
	in, err := o.Bind(op.Input{JSON: []byte(body)})
	if err != nil {
		return display.Recording{}, nil, err
	}
	call := &op.Call{}
	out, err := o.Call(op.WithCall(testContext(t), call), in)
	if err != nil {
		return display.Recording{}, call, err
	}
	return out.(display.Recording), call, nil
}

// film describes a video, from ffprobe.
type film struct {
	size     image.Point
	frames   int
	duration float64
	codec    string
}

func probe(t testing.TB, path string) film {
	t.Helper()
	out, err := exec.Command("ffprobe", "-v", "error", "-count_frames", "-show_entries",
		"stream=codec_name,width,height,nb_read_frames:format=duration:packet=pts_time,duration_time",
		"-select_streams", "v", "-of", "json", path).Output()
	if err != nil {
		t.Fatalf("ffprobe %s: %v", path, err)
	}
	var p struct {
		Streams []struct {
			Codec         string `json:"codec_name"`
			Width, Height int
			Frames        string `json:"nb_read_frames"`
		}
		Format struct{ Duration string }
	}
	must(t, json.Unmarshal(out, &p))
	if len(p.Streams) != 1 {
		t.Fatalf("ffprobe %s: %s, want 1 stream", path, out)
	}
	v := p.Streams[0]
	f := film{size: image.Pt(v.Width, v.Height), codec: v.Codec}
	f.frames, _ = strconv.Atoi(v.Frames)
	f.duration, _ = strconv.ParseFloat(p.Format.Duration, 64)
	return f
}

func TestRecording(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "ffmpeg", "ffprobe")
	d := newDesk(t)
	if r, _, err := record(t, d.Service, `{"action":"status"}`); err != nil || r.Status != "idle" || r.SavePath != nil {
		t.Errorf(`before anything was recorded: %+v, %v, want status "idle" and no save path`, r, err)
	}
	if _, _, err := record(t, d.Service, `{"action":"stop"}`); err == nil || !strings.Contains(err.Error(), "start a recording first") {
		t.Errorf("stop without a recording: %v, want an error containing \"start a recording first\"", err)
	}
	r, _, err := record(t, d.Service, `{"action":"start","save_path":"sub/film.mp4","fps":10}`)
	must(t, err)
	path := filepath.Join(d.dir, "sub", "film.mp4")
	if r.Status != "recording" || r.SavePath == nil || *r.SavePath != path {
		t.Errorf("started: %+v, want Status \"recording\", SavePath %v", r, path)
	}
	_, _, err = record(t, d.Service, `{"action":"start"}`)
	if e, ok := op.AsError(err); !ok || e.Code != op.Conflict || !strings.Contains(e.Msg, path) || !strings.Contains(e.Msg, "stop it first") {
		t.Errorf(`a second recording: %v, want an error with code conflict that contains %q and "stop it first"`, err, path)
	}
	if _, err := d.Configure(testContext(t),
		display.ConfigureIn{Resolution: &display.Resolution{Width: 640, Height: 480}}); err == nil ||
		!strings.Contains(err.Error(), "stop the recording") {
		t.Errorf("a smaller display while it is recorded: %v, want an error containing \"stop the recording\"", err)
	}
	testenv.Poll(t, "two seconds are recorded", func() bool {
		r, _, err := record(t, d.Service, `{"action":"status"}`)
		return err == nil && r.Status == "recording" && r.Duration > 2 && r.Size != nil && *r.Size > 0
	})
	r, _, err = record(t, d.Service, `{"action":"stop"}`)
	must(t, err)
	f := probe(t, path)
	if r.Status != "stopped" || r.Size == nil || *r.Size < 1000 || f.size != image.Pt(1024, 768) || f.codec != "h264" {
		t.Errorf("stopped: %+v, the film is %+v, want Status \"stopped\", Size at least 1000, size %v, codec \"h264\"", r, f, image.Pt(1024, 768))
	}
	if math.Abs(f.duration-r.Duration) > 0.2 || f.duration < 1.5 || math.Abs(float64(f.frames)-10*f.duration) > 2 {
		t.Errorf("the film is %+v, want about %v seconds at 10 frames per second", f, r.Duration)
	}
	if r, _, err := record(t, d.Service, `{"action":"stop"}`); err != nil || r.Status != "stopped" {
		t.Errorf("stop again: %+v, %v, want Status \"stopped\"", r, err)
	}
	_, err = d.Configure(testContext(t), display.ConfigureIn{Resolution: &display.Resolution{Width: 801, Height: 601}})
	must(t, err)
}

func TestRecordingEndsByItself(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "ffmpeg", "ffprobe")
	d := newDesk(t, func(c *display.Config) { c.Width, c.Height = 641, 481 })
	r, _, err := record(t, d.Service, `{"action":"start","max_duration":1.2,"width":320,"crf":40,"fps":5}`)
	must(t, err)
	if !strings.HasPrefix(*r.SavePath, filepath.Join(d.dir, "recordings", "recording_")) {
		t.Errorf("got path %s, want SavePath beginning with %q", *r.SavePath, filepath.Join(d.dir, "recordings", "recording_"))
	}
	testenv.Poll(t, "the recording ends", func() bool {
		r, call, err := record(t, d.Service, `{"action":"status"}`)
		if call.Hint != "" {
			t.Errorf("hint %q, want Hint \"\"", call.Hint)
		}
		return err == nil && r.Status == "stopped"
	})
	if f := probe(t, *r.SavePath); f.size != image.Pt(320, 240) || math.Abs(f.duration-1.2) > 0.3 {
		t.Errorf("the film is %+v, want size 320x240, duration 1.2", f)
	}
}

// TestRecordingSurvivesKill: all but the last second is playable after any process is killed.
func TestRecordingSurvivesKill(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "ffmpeg", "ffprobe")
	for _, victim := range []string{"ffmpeg", "Xtigervnc"} {
		t.Run(victim, func(t *testing.T) {
			t.Parallel()
			d := newDesk(t, func(c *display.Config) { c.Width, c.Height = 640, 480 })
			r, _, err := record(t, d.Service, `{"action":"start","fps":10}`)
			must(t, err)
			testenv.Poll(t, "three seconds are recorded", func() bool {
				r, _, err = record(t, d.Service, `{"action":"status"}`)
				return err == nil && r.Duration > 3
			})
			must(t, syscall.Kill(d.pidOf(t, victim), syscall.SIGKILL))
			var call *op.Call
			testenv.Poll(t, "the end is detected", func() bool {
				r, call, err = record(t, d.Service, `{"action":"status"}`)
				return err == nil && r.Status == "stopped"
			})
			if !strings.Contains(call.Hint, "ended early") {
				t.Errorf("hint %q, want Hint containing \"ended early\"", call.Hint)
			}
			if f := probe(t, *r.SavePath); f.size != image.Pt(640, 480) || f.duration < 1 || f.frames < 10 {
				t.Errorf("the film is %+v after %+v, want size %v, duration at least 1, frames at least 10", f, r, image.Pt(640, 480))
			}
			if _, _, err := record(t, d.Service, `{"action":"start"}`); err != nil {
				t.Errorf("the next recording: %v", err)
			}
		})
	}
}

func TestRecordingRefusals(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "ffmpeg")
	d := newDesk(t)
	must(t, os.WriteFile(filepath.Join(d.dir, "file"), nil, 0o600))
	for body, want := range map[string]string{
		`{"action":"pause"}`:                               "action",
		`{}`:                                               "action",
		`{"action":"start","fps":31}`:                      "fps",
		`{"action":"start","fps":0}`:                       "fps",
		`{"action":"start","crf":52}`:                      "crf",
		`{"action":"start","max_duration":0}`:              "max_duration",
		`{"action":"start","width":100000}`:                "use sides",
		`{"action":"start","save_path":"."}`:               "not a regular file",
		`{"action":"start","save_path":"file/film.mp4"}`:   "folder",
		`{"action":"start","save_path":"/proc/nope/film"}`: "folder",
	} {
		if _, _, err := record(t, d.Service, body); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error containing %q", body, err, want)
		}
	}
	if left := d.runner.Living(); len(left) > 2 {
		t.Errorf("recorders still run: %+v, want at most 2", left)
	}
}

func TestRecordingWithoutRecorder(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "Xtigervnc", "openbox")
	bin := t.TempDir()
	for _, program := range []string{"Xtigervnc", "openbox"} {
		path, err := exec.LookPath(program)
		must(t, err)
		must(t, os.Symlink(path, filepath.Join(bin, program)))
	}
	runner := proc.New(proc.Config{Env: []string{"PATH=" + bin}})
	defer runner.Close()
	s := display.New(display.Config{Runner: runner, State: t.TempDir(), Home: bin, Workspace: bin})
	defer s.Close()
	if _, _, err := record(t, s, `{"action":"start"}`); err == nil || !strings.Contains(err.Error(), "install the package ffmpeg") {
		t.Errorf("without ffmpeg: %v, want an error containing \"install the package ffmpeg\"", err)
	}
	if n := len(runner.Living()); n != 0 {
		t.Errorf("%d processes were started, want 0", n)
	}
}

// TestCloseEndsTheRecording: its file is complete.
func TestCloseEndsTheRecording(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "ffmpeg", "ffprobe")
	d := newDesk(t, func(c *display.Config) { c.Width, c.Height = 320, 240 })
	r, _, err := record(t, d.Service, fmt.Sprintf(`{"action":"start","save_path":%q}`, filepath.Join(d.dir, "-odd name:1.mp4")))
	must(t, err)
	must(t, d.Close())
	if f := probe(t, "file:"+*r.SavePath); f.size != image.Pt(320, 240) || f.frames < 1 {
		t.Errorf("the film is %+v, want size %v, frames at least 1", f, image.Pt(320, 240))
	}
}
