package app

import (
	"context"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/bash"
	"github.com/cove-sandbox/cove/internal/guest/e2b/interpreter"
	"github.com/cove-sandbox/cove/internal/guest/jupyter"
	"github.com/cove-sandbox/cove/internal/guest/node"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// newInterpreter returns E2B's code interpreter on top of the services that run code.
func (a *Aio) newInterpreter(python *jupyter.Service, javascript *node.Service, bashes *bash.Service,
	home func() string,
) *interpreter.Service {
	// Errors of End mean that the session has already ended.
	return interpreter.New(interpreter.Config{
		Home: home, Log: a.log, StripTypes: a.stripTypes,
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

// stripScript removes the types from a program on standard input with Node.js.
const stripScript = `const {stripTypeScriptTypes: strip} = require("module")
if (!strip) {
  console.error("TypeScript requires Node.js 22.13 or later; this is " + process.version + "; run: npm install -g node@22")
  process.exit(3)
}
process.removeAllListeners("warning")
let code = ""
process.stdin.on("data", d => code += d).on("end", () => {
  try { process.stdout.write(strip(code, {mode: "transform"})) } catch (e) { console.error(String(e)); process.exit(4) }
})`

// stripTypes converts TypeScript to JavaScript.
func (a *Aio) stripTypes(ctx context.Context, code string) (string, error) {
	res, err := a.runner.Run(ctx, proc.Command{Path: "node", Args: []string{"-e", stripScript},
		Stdin: strings.NewReader(code), Limit: 64 << 20})
	switch {
	case err != nil:
		return "", err
	case res.Exit.Code != 0:
		return "", op.Errorf(op.Invalid, "%s", strings.TrimSpace(string(res.Stderr)))
	}
	return string(res.Stdout), nil
}
