package display

import (
	"context"
	"fmt"
	"image"
	"math"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Limits of the display size. Windows do not fit a smaller display; a screenshot of the largest one takes 130 MB.
const (
	minSide   = 64
	maxWidth  = 7680
	maxHeight = 4320
)

// ConfigureIn is the input of Configure.
type ConfigureIn struct {
	Resolution *Resolution `json:"resolution" doc:"New display size: {width, height}, or a string such as 1280x720"`
}

// Resolution is a display size, as an object or a string.
type Resolution struct {
	Width  int `json:"width"`
	Height int `json:"height"`
}

// DecodeOp accepts {"width":W,"height":H} and "WxH".
func (r *Resolution) DecodeOp(v any) error {
	switch v := v.(type) {
	case string:
		w, h, ok := strings.Cut(strings.ToLower(strings.TrimSpace(v)), "x")
		width, err1 := strconv.Atoi(strings.TrimSpace(w))
		height, err2 := strconv.Atoi(strings.TrimSpace(h))
		if !ok || err1 != nil || err2 != nil {
			return fmt.Errorf("should be a size such as 1280x720")
		}
		r.Width, r.Height = width, height
	case map[string]any:
		for name, dst := range map[string]*int{"width": &r.Width, "height": &r.Height} {
			n, err := strconv.ParseFloat(fmt.Sprint(v[name]), 64) // 1280.0 and "1280" are sent too
			if err != nil || n != math.Trunc(n) || math.Abs(n) > math.MaxInt32 {
				return fmt.Errorf("%s should be a whole number", name)
			}
			*dst = int(n)
		}
	default:
		return fmt.Errorf("should be {width, height} or a size such as 1280x720")
	}
	if r.Width <= 0 || r.Height <= 0 {
		return fmt.Errorf("width and height should be greater than 0")
	}
	return nil
}

// SchemaOp describes the object form only.
func (Resolution) SchemaOp() *jsonschema.Schema {
	side := func() *jsonschema.Schema {
		return &jsonschema.Schema{Type: "integer", ExclusiveMinimum: new(0.0)}
	}
	return &jsonschema.Schema{
		Type: "object", Required: []string{"width", "height"},
		Properties: map[string]*jsonschema.Schema{"width": side(), "height": side()},
	}
}

// Configured is the current configuration.
type Configured struct {
	Resolution Resolution `json:"resolution" doc:"Size of the display"`
}

// Configure resizes the display.
func (s *Service) Configure(ctx context.Context, in ConfigureIn) (Configured, error) {
	d, release, err := s.hold(ctx)
	if err != nil {
		return Configured{}, err
	}
	defer release()
	s.hintRestart(ctx)
	if in.Resolution == nil {
		size, err := d.conn.Size(ctx)
		return Configured{Resolution{size.X, size.Y}}, toOpError(ctx, err)
	}
	want := *in.Resolution
	if min(want.Width, want.Height) < minSide || want.Width > maxWidth || want.Height > maxHeight {
		return Configured{}, op.Errorf(op.Invalid, "display size %dx%d is out of range; use a size from %dx%d to %dx%d",
			want.Width, want.Height, minSide, minSide, maxWidth, maxHeight)
	}
	if err := s.record.checkFits(want); err != nil {
		return Configured{}, err
	}
	if err := d.conn.Resize(ctx, want.Width, want.Height); err != nil {
		return Configured{}, toOpError(ctx, err)
	}
	s.rememberSize(image.Pt(want.Width, want.Height))
	op.Say(ctx, "Display resized to %dx%d", want.Width, want.Height)
	return Configured{want}, nil
}
