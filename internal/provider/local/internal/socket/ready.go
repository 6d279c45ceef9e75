package socket

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Server is the starting server of a sandbox.
type Server struct {
	Dir     string // the sandbox's folder
	Sandbox sandbox.Sandbox
	// Path is requested until the response is 200, for at most Timeout.
	Path    string
	Timeout time.Duration
	// Ended is closed when the sandbox ends.
	Ended <-chan struct{}
}

var (
	// ErrEnded reports that the sandbox ended before its server was ready.
	ErrEnded    = errors.New("the sandbox has ended")
	errNoAnswer = errors.New("the server does not answer")
)

// Pauses between probes. They are short at first, and long enough that a hundred concurrent starts do not slow each other
// down.
const (
	minPause = time.Millisecond / 2
	maxPause = 50 * time.Millisecond
)

// WaitReady probes a server until it is ready. It returns ErrNotReady after the timeout, ErrEnded, or the cause of ctx.
// It keeps the connection of the last probe for a short time, because a request usually follows.
func (d *Dialer) WaitReady(ctx context.Context, s Server) error {
	deadline, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	ep := d.Endpoint(s.Dir, s.Sandbox, 0)
	last := errNoAnswer
	tick := time.NewTimer(0)
	defer tick.Stop()
	for began := time.Now(); ; {
		pause := min(max(time.Since(began)/12, minPause), maxPause)
		if c, err := probe(deadline, ep, s.Path); err == nil {
			switch {
			case c == nil:
			case s.Sandbox.Spec.Server.Port == 0:
				d.idle.put(s.Sandbox.ID, c)
			default:
				c.Close()
			}
			return nil
		} else if deadline.Err() == nil && !timedOut(err) { // otherwise the previous error is more specific
			last = err
		}
		tick.Reset(pause)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-deadline.Done():
			if ctx.Err() != nil { // both have ended, and ctx has the cause
				return context.Cause(ctx)
			}
			return fmt.Errorf("%w in %v: %w", sandbox.ErrNotReady, s.Timeout, last)
		case <-s.Ended:
			return ErrEnded
		case <-tick.C:
		}
	}
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// probe sends one request over a new connection, and returns the connection if it can be reused.
func probe(ctx context.Context, ep sandbox.Endpoint, path string) (net.Conn, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sandbox"+path, nil)
	if err != nil {
		return nil, err
	}
	c, err := ep.Dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	reusable, err := roundTrip(c, req)
	if reusable = stop() && reusable; !reusable {
		c.Close()
		return nil, err
	}
	return c, err
}

// maxResponse bounds a response.
const maxResponse = 16 << 10

// roundTrip sends a request and reads the response, which must be 200.
func roundTrip(c net.Conn, req *http.Request) (reusable bool, err error) {
	if err := req.Write(c); err != nil {
		return false, err
	}
	from := bufio.NewReader(io.LimitReader(c, maxResponse))
	resp, err := http.ReadResponse(from, req)
	if err != nil {
		return false, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return false, fmt.Errorf("%s returned %s", req.URL.Path, resp.Status)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && !resp.Close && from.Buffered() == 0, nil
}
