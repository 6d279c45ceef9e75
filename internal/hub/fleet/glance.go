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
	Kind    string // screen, terminal, step, or empty: nothing to show
	Picture []byte // JPEG
	Text    string
	Step    Step
}

// Step is the latest operation in a sandbox.
type Step struct {
	Time   time.Time `json:"time"`
	Op     string    `json:"op" doc:"Name of the operation; empty: none"`
	Text   string    `json:"text" doc:"What it did, such as a command, in one line"`
	Failed bool      `json:"failed"`
}

// maxStep is the maximum length of the texts of a step.
const maxStep = 400

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
			Step    Step   `json:"step"`
		} `json:"data"`
	}
	if !f.box(sb).query(ctx, "/v1/sandbox/glance?width="+strconv.Itoa(width), &reply) {
		return Glance{}
	}
	d := reply.Data
	if len(d.Step.Op) > maxStep || len(d.Step.Text) > maxStep {
		d.Step = Step{}
	}
	switch {
	case d.Kind == "screen" && len(d.Picture) <= maxPicture && bytes.HasPrefix(d.Picture, []byte("\xff\xd8\xff")):
		return Glance{Kind: d.Kind, Picture: d.Picture, Step: d.Step}
	case d.Kind == "terminal" && len(d.Text) <= maxGlance:
		return Glance{Kind: d.Kind, Text: d.Text, Step: d.Step}
	case d.Kind == "step" && d.Step.Op != "":
		return Glance{Kind: d.Kind, Step: d.Step}
	}
	return Glance{Step: d.Step}
}
