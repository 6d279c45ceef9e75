package verb

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// reversal is a port inside that leads to an address of this machine.
type reversal struct {
	port    int
	address string
}

// parseReverse reads PORT, PORT:LOCAL or PORT:HOST:LOCAL.
func parseReverse(specs []string) (out []reversal, err error) {
	for _, spec := range specs {
		first, rest, more := strings.Cut(spec, ":")
		host, local, named := "localhost", rest, false
		if i := strings.LastIndexByte(rest, ':'); i >= 0 {
			host, local, named = strings.Trim(rest[:i], "[]"), rest[i+1:], true
		}
		if !more {
			local = first
		}
		port, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(local, 10, 16)
		if err1 != nil || err2 != nil || port == 0 || to == 0 || named && host == "" {
			return nil, &cli.Error{Code: cli.ExitUsage,
				Msg: fmt.Sprintf("invalid port %q for --reverse; use PORT, PORT:LOCAL or PORT:HOST:LOCAL", spec)}
		}
		out = append(out, reversal{int(port), net.JoinHostPort(host, strconv.Itoa(int(to)))})
	}
	return out, nil
}

// maxReconnect is the longest pause between attempts to reconnect.
const maxReconnect = 10 * time.Second

// reverse serves a port inside until ctx is done. It reconnects if the connection is lost after it worked, for example because
// the hub restarts.
func (v *Verbs) reverse(ctx context.Context, g *client.Guest, r reversal) error {
	var dialer net.Dialer
	dial := func(ctx context.Context) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", r.address) }
	worked, told := false, false
	for pause := 100 * time.Millisecond; ctx.Err() == nil; pause = min(2*pause, maxReconnect) {
		err := g.Reverse(ctx, r.port, dial, func() {
			worked, told, pause = true, false, 100*time.Millisecond
			fmt.Fprintf(v.Text.Out, "forwarding port %d of the sandbox to %s\n", r.port, r.address)
		})
		switch {
		case ctx.Err() != nil:
		case !worked || isFinal(err):
			return err
		case !told:
			told = true
			fmt.Fprintf(v.Text.Err, "%v; reconnecting\n", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
	return nil
}

// isFinal reports whether an attempt to reconnect would fail the same way.
func isFinal(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return ok && e.Status < 500
}
