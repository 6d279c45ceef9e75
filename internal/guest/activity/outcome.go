package activity

import (
	"bytes"
	"context"
	"encoding/json"
	"image"
	"image/color"
	"image/draw"
	"image/jpeg"
	"image/png"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Limits of a plot. Code in the sandbox controls its content.
const (
	maxPlot   = 2 << 20 // bytes
	maxPixels = 8 << 20
)

// TypedOp is the name of the entries of commands that a person typed in a terminal.
const TypedOp = "terminal_command"

// Typed is a command that a person typed in a terminal.
type Typed struct {
	Session, Command, Output string
	ExitCode                 int
	Began                    time.Time
}

// Typed records a command that a person typed. The call is that of the person's connection.
func (s *Service) Typed(call *op.Call, t Typed) {
	if s.record == nil {
		return
	}
	e := Entry{Op: TypedOp, Kind: "shell", Took: milliseconds(t.Began)}
	e.Input = summarize(map[string]any{"command": t.Command, "id": t.Session})
	e.Output = summarize(map[string]any{"output": t.Output, "exit_code": t.ExitCode})
	e.Changes = s.record.work.changed()
	person := *call
	person.Via = "page" // browsers do not name the page that opens a WebSocket
	s.record.add(op.WithCall(context.Background(), &person), t.Began, item{entry: e})
}

// hasFailed reports whether an entry shows a failure. Entries of earlier versions lack the field.
func (e Entry) hasFailed() bool { return e.Failed || e.Error != "" }

// isFailure reports whether an operation failed, a command exited with a code other than 0, or code
// raised. The output of a stream is in its last event.
func isFailure(e Entry) bool {
	type result struct {
		ExitCode int    `json:"exit_code"`
		Status   string `json:"status"`
	}
	var out struct {
		result
		Result result `json:"result"`
	}
	// Output that is not an object has no result.
	_ = json.Unmarshal([]byte(e.Output), &out)
	bad := func(r result) bool {
		return r.ExitCode != 0 || r.Status == "error" || r.Status == "timeout" || r.Status == "timed_out"
	}
	return e.Error != "" || bad(out.result) || bad(out.Result)
}

// storePlot stores the plot of a cell as the picture of an entry, on white.
func (r *Record) storePlot(id int64, plot []byte) bool {
	if len(plot) > maxPlot {
		return false
	}
	size, err := png.DecodeConfig(bytes.NewReader(plot))
	if err != nil || size.Width*size.Height > maxPixels || size.Width > maxPixels || size.Height > maxPixels {
		return false
	}
	img, err := png.Decode(bytes.NewReader(plot))
	if err != nil {
		return false
	}
	white := image.NewRGBA(img.Bounds())
	draw.Draw(white, white.Bounds(), image.NewUniform(color.White), image.Point{}, draw.Src)
	draw.Draw(white, white.Bounds(), img, img.Bounds().Min, draw.Over)
	var b bytes.Buffer
	if jpeg.Encode(&b, white, &jpeg.Options{Quality: 80}) != nil || b.Len() > maxPicture {
		return false
	}
	return r.store.keepPicture(id, b.Bytes())
}
