package fleet

import (
	"bytes"
	"context"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Glance is a preview of a sandbox. Its content is untrusted.
type Glance struct {
	Kind    string // screen, terminal, or empty: nothing to show
	Picture []byte // JPEG
	Text    string
}

const (
	glanceTime = 5 * time.Second
	maxPicture = 256 << 10
	maxGlance  = 4 << 10
)

// Glance queries a preview of a running sandbox. It does not wake the sandbox or keep it awake.
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
