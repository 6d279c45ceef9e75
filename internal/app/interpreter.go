package app

import (
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/e2b/interpreter"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/node"
)

// newInterpreter returns E2B's code interpreter on top of the services that run code.
func (a *Aio) newInterpreter(python *jupyter.Service, javascript *node.Service, bashes *bash.Service,
	home func() string,
) *interpreter.Service {
	// Errors of End mean that the session has already ended.
	return interpreter.New(interpreter.Config{
		Home: home, Log: a.log, StripTypes: javascript.StripTypes,
		Python: interpreter.Language{Runner: python, End: func(ctx context.Context, id string) {
			_, _ = python.DeleteSession(ctx, jupyter.SessionIn{SessionID: id})
		}},
		JavaScript: interpreter.Language{Runner: javascript, End: func(ctx context.Context, id string) {
			_, _ = javascript.DeleteSession(ctx, node.SessionIn{SessionID: id})
		}},
		Bash: interpreter.Language{Runner: shellOf(bashes), End: func(ctx context.Context, id string) {
			_, _ = bashes.CloseSession(ctx, bash.CloseSessionIn{SessionID: id})
		}},
	})
}

// shellOf runs commands in sessions of bash. A command whose caller disconnects is interrupted.
func shellOf(bashes *bash.Service) interpreter.Shell {
	return func(ctx context.Context, session, dir, code string, send func(stream, text string) error) (exit int, err error) {
		in := bash.ExecIn{SessionID: &session, Command: code}
		if dir != "" {
			in.ExecDir = &dir
		}
		err = bashes.ExecStream(ctx, in, func(e op.Event) error {
			got, ok := e.Data.(bash.ExecEvent)
			switch {
			case !ok:
			case e.Name == "stdout" || e.Name == "stderr":
				return send(e.Name, got.Data)
			case got.ExitCode != nil:
				exit = *got.ExitCode
			}
			return nil
		})
		if ctx.Err() != nil {
			_, _ = bashes.Kill(context.WithoutCancel(ctx), bash.KillIn{SessionID: session, Signal: "SIGINT"}) // it may have ended
		}
		return exit, err
	}
}
