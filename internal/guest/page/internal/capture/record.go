package capture

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"os"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/driver"
)

// RecordIn starts, pauses, resumes, stops or describes a recording.
type RecordIn struct {
	Action   string  `json:"action" doc:"once records for the duration" enum:"once,start,pause,resume,stop,status" default:"once"`
	SavePath *string `json:"save_path" doc:"Path of the video, .mp4 or .webm; default: a new file in ~/Videos"`
	Duration float64 `json:"duration" doc:"Maximum duration in seconds" exclusiveMinimum:"0" default:"10"`
	FPS      int     `json:"fps" doc:"Frames per second" exclusiveMinimum:"0" default:"15"`
	Quality  int     `json:"quality" doc:"Image quality" minimum:"0" maximum:"100" default:"80"`
	Tab      *int    `json:"tab" doc:"Index of the tab; default: the active tab" minimum:"0"`
}

// Recording is the state of a recording.
type Recording struct {
	Status   string  `json:"status" doc:"idle, recording, paused or stopped"`
	SavePath *string `json:"save_path"`
	Duration float64 `json:"duration" doc:"Seconds recorded"`
	Frames   int     `json:"frames"`
	Size     int64   `json:"file_size_bytes"`
}

// maxFPS is the maximum frame rate.
const maxFPS = 30

// Record starts or controls the recording of a page.
func (s *Service) Record(ctx context.Context, in RecordIn) (*Recording, error) {
	switch in.Action {
	case "start":
		r, err := s.startRecording(ctx, in)
		if err != nil {
			return nil, err
		}
		return describe(r), nil
	case "once":
		r, err := s.startRecording(ctx, in)
		if err != nil {
			return nil, err
		}
		select {
		case <-r.done:
		case <-ctx.Done():
			r.stop()
			return nil, ctx.Err()
		}
		if r.err != nil {
			return nil, r.err
		}
		return describe(r), nil
	}
	s.mu.Lock()
	r := s.video
	s.mu.Unlock()
	if r == nil {
		if in.Action == "status" {
			return &Recording{Status: "idle"}, nil
		}
		return nil, op.Errorf(op.NotFound, "cannot %s: there is no recording; start one", in.Action)
	}
	switch in.Action {
	case "pause", "resume":
		if !r.setPaused(in.Action == "pause") {
			return nil, op.Errorf(op.Conflict, "the recording has stopped; start a new one")
		}
	case "stop":
		r.stop()
		if r.err != nil {
			return nil, r.err
		}
	}
	return describe(r), nil
}

func (s *Service) startRecording(ctx context.Context, in RecordIn) (*video, error) {
	if in.FPS > maxFPS {
		return nil, op.Errorf(op.Invalid, "fps %d is too high; the maximum is %d", in.FPS, maxFPS)
	}
	if _, ok := s.runner.Look("ffmpeg"); !ok {
		return nil, op.Errorf(op.Unavailable, "ffmpeg is not installed; install the package ffmpeg")
	}
	name := "~/Videos/page-" + time.Now().Format("20060102-150405.000") + ".mp4"
	if p := op.Value(in.SavePath); p != "" {
		name = p
	}
	path, err := s.d.OutputPath(name)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	if old := s.video; old != nil && !old.hasStopped() {
		s.mu.Unlock()
		return nil, op.Errorf(op.Conflict, "a recording to %q is running; stop it first", old.path)
	}
	r := newVideo(path, in.FPS, op.Seconds(in.Duration))
	s.video = r
	s.mu.Unlock()
	if err := s.film(ctx, in, r); err != nil {
		r.fail(err)
		return nil, err
	}
	return r, nil
}

// film connects the screencast of a tab to the encoder.
func (s *Service) film(ctx context.Context, in RecordIn, r *video) error {
	b, recent, release, err := s.d.Connect(ctx)
	if err != nil {
		return err
	}
	t, err := s.d.Tab(ctx, b, recent, in.Tab)
	if err == nil {
		err = t.Ready(ctx)
	}
	if err != nil {
		release()
		return driver.ToOpError(err)
	}
	events := b.Client().Subscribe(cdp.Filter{Session: t.Session(), Methods: []string{"Page.screencastFrame"}, MaxEvents: 8})
	fail := func(err error) error { events.Close(); release(); return driver.ToOpError(err) }
	first, err := s.capture(ctx, t, ScreenshotIn{Quality: &in.Quality}, "jpeg")
	if err != nil {
		return fail(err)
	}
	err = t.Call(ctx, "Page.startScreencast", map[string]any{"format": "jpeg", "quality": in.Quality,
		"maxWidth": 1920, "maxHeight": 1920}, nil)
	if err != nil {
		return fail(err)
	}
	err = r.begin(s.runner, first, func() {
		end, cancel := context.WithTimeout(context.Background(), driver.ProbeTime)
		defer cancel()
		_ = t.Call(end, "Page.stopScreencast", nil, nil)
		events.Close()
		release()
	})
	if err != nil {
		return fail(err)
	}
	go receive(r, t, events)
	return nil
}

// receive keeps the latest image of the page. The browser sends one only when the page changes.
func receive(r *video, t *tab.Tab, events *cdp.Subscription) {
	life := r.life
	for {
		e, err := events.Next(life)
		if err != nil {
			return
		}
		var p struct {
			Data    string          `json:"data"`
			Session json.RawMessage `json:"sessionId"`
		}
		if e.Decode(&p) != nil {
			continue
		}
		if b, err := base64.StdEncoding.DecodeString(p.Data); err == nil {
			r.show(b)
		}
		_ = t.Call(life, "Page.screencastFrameAck", map[string]any{"sessionId": p.Session}, nil)
	}
}

func describe(r *video) *Recording {
	out := &Recording{SavePath: &r.path}
	out.Status, out.Frames, out.Duration = r.state()
	if info, err := os.Stat(r.path); err == nil {
		out.Size = info.Size()
	}
	return out
}
