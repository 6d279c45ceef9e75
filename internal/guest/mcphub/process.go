package mcphub

import (
	"context"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/system/proc"
)

// grace is the time between TERM and KILL when a server is stopped.
const grace = 2 * time.Second

// starter returns a function that starts the process of a server. The log gets its standard error.
func (s *Service) starter(name string, v Server) Starter {
	return func(context.Context) (io.ReadCloser, io.WriteCloser, func(), error) {
		inRead, inWrite, err := os.Pipe()
		if err != nil {
			return nil, nil, nil, err
		}
		outRead, outWrite, err := os.Pipe()
		if err != nil {
			inRead.Close()
			inWrite.Close()
			return nil, nil, nil, err
		}
		c := proc.Command{Path: v.Command, Args: v.Args, Dir: v.Cwd, Stdin: inRead, Stdout: outWrite,
			Stderr: &lineLog{log: s.Log, server: name}, Grace: grace}
		if c.Dir == "" {
			c.Dir = s.Workspace
		}
		if len(v.Env) > 0 {
			c.Env = s.Runner.Environ()
			for k, value := range v.Env {
				c.Env = append(c.Env, k+"="+value)
			}
		}
		p, err := s.Runner.Start(c)
		inRead.Close()
		outWrite.Close()
		if err != nil {
			inWrite.Close()
			outRead.Close()
			return nil, nil, nil, err
		}
		stop := sync.OnceFunc(func() {
			inWrite.Close() // most servers end when their input ends
			p.Stop()
			outRead.Close()
		})
		return outRead, inWrite, stop, nil
	}
}

// lineLog writes the lines of a program to the log, at most maxLine bytes of each.
type lineLog struct {
	log    *slog.Logger
	server string
	rest   []byte
}

const maxLine = 1024

func (l *lineLog) Write(p []byte) (int, error) {
	l.rest = append(l.rest, p...)
	for {
		line, rest, ok := strings.Cut(string(l.rest), "\n")
		if !ok {
			if len(l.rest) > maxLine {
				l.rest = l.rest[:maxLine]
			}
			return len(p), nil
		}
		l.rest = []byte(rest)
		if len(line) > maxLine {
			line = line[:maxLine]
		}
		l.log.Info("message of mcp server", "server", l.server, "text", strings.ToValidUTF8(line, "?"))
	}
}
