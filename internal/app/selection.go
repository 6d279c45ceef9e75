package app

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// helperName is the program with the libraries that would slow down the start of a server.
const helperName = "aio-markdown"

// findHelper returns the path of the helper; empty if it is missing. make run builds it while the server runs.
func findHelper() string { return host.Beside(helperName) }

// selection evaluates an expression in the helper.
type selection struct{ language, expression string }

// selectInHelper checks an expression.
func selectInHelper(ctx context.Context, language, expression string) (cli.Selection, error) {
	s := selection{language, expression}
	return s, s.run(ctx, nil, io.Discard, "-check")
}

// Write implements cli.Selection.
func (s selection) Write(ctx context.Context, w io.Writer, json []byte) error {
	return s.run(ctx, json, w)
}

func (s selection) run(ctx context.Context, json []byte, w io.Writer, flags ...string) error {
	program := findHelper()
	if program == "" {
		return fmt.Errorf("the program %s is missing; install it in the folder of aio", helperName)
	}
	runner := proc.New(proc.Config{Env: config.Environ()})
	defer runner.Close()
	args := append([]string{"select"}, flags...)
	res, err := runner.Run(ctx, proc.Command{Path: program, Args: append(args, "--", s.language, s.expression), Dir: "/",
		Stdin: bytes.NewReader(json), Stdout: w})
	switch reason := strings.TrimSpace(string(res.Stderr)); {
	case err != nil:
		return err
	case res.Exit.Code == 1 && reason != "":
		return errors.New(reason)
	case res.Exit.Code != 0:
		return fmt.Errorf("%s: %v", helperName, res.Exit)
	}
	return nil
}
