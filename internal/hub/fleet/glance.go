package fleet

import (
	"bytes"
	"context"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Glance is what a sandbox is doing. What it says is not trusted.
type Glance struct {
	Kind    string // screen, terminal, or empty: there is nothing to see
	Picture []byte // JPEG
	Text    string
}

const (
	glanceTime = 5 * time.Second
	maxPicture = 256 << 10
	maxGlance  = 4 << 10
)

// Glance asks a running sandbox what it is doing. It neither wakes it nor keeps it awake.
func (f *Fleet) Glance(ctx context.Context, sb sandbox.Sandbox, width int) Glance {
	if sb.State != sandbox.Running || !IsNative(sb) {
		return Glance{}
	}
	ctx, cancel := context.WithTimeout(ctx, glanceTime)
	defer cancel()
	var reply struct {
		Data struct {
			Kind    string `json:"kind"`
			Picture []byte `json:"picture"`
			Text    string `json:"text"`
		} `json:"data"`
	}
	if !f.box(sb).query(ctx, "/v1/sandbox/glance?width="+strconv.Itoa(width), &reply) {
		return Glance{}
	}
	d := reply.Data
	switch {
	case d.Kind == "screen" && len(d.Picture) <= maxPicture && bytes.HasPrefix(d.Picture, []byte("\xff\xd8\xff")):
		return Glance{Kind: d.Kind, Picture: d.Picture}
	case d.Kind == "terminal" && len(d.Text) <= maxGlance:
		return Glance{Kind: d.Kind, Text: d.Text}
	}
	return Glance{}
}
