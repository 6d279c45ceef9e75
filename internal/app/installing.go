package app

import (
	"context"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

const (
	// installingAge is the age after which the state of an installation is ignored: the program that
	// updates it every few seconds has ended.
	installingAge = time.Minute
	// maxInstalling bounds the text about an installation.
	maxInstalling = 200
	// installingRetry is when callers should retry.
	installingRetry = 10 * time.Second
)

// installation is the file with the state of an installation that continues while the server runs; empty if there is none.
type installation string

// progress says what is being installed; empty if nothing is.
func (i installation) progress() string {
	// Non-blocking, because it could be a pipe.
	f, err := os.OpenFile(string(i), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return ""
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) > installingAge {
		return ""
	}
	b, err := io.ReadAll(io.LimitReader(f, maxInstalling))
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(strings.ToValidUTF8(string(b), "")), " ")
}

// explain adds the progress of the installation to errors about something that is not available.
func (i installation) explain(o op.Op) op.Op {
	if i == "" {
		return o
	}
	explained := func(err error) error {
		e, ok := op.AsError(err)
		if !ok || e.Code != op.Unavailable {
			return err
		}
		doing := i.progress()
		if doing == "" {
			return err
		}
		with := *e
		with.Msg += "; programs are still being installed (" + doing + "): try again later"
		with.RetryAfter = installingRetry
		return &with
	}
	if call := o.Call; call != nil {
		o.Call = func(ctx context.Context, in any) (any, error) {
			out, err := call(ctx, in)
			return out, explained(err)
		}
	}
	if stream := o.Stream; stream != nil {
		o.Stream = func(ctx context.Context, in any, send func(op.Event) error) error {
			return explained(stream(ctx, in, send))
		}
	}
	return o
}

// explainState adds the progress of the installation to the state of an absent component.
func (i installation) explainState(state func() (state, why string)) func() (string, string) {
	if i == "" {
		return state
	}
	return func() (string, string) {
		got, why := state()
		if doing := i.progress(); got == "absent" && doing != "" {
			why += "; being installed: " + doing
		}
		return got, why
	}
}
