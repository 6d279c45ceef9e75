package cove

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/auth/peer"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

func (v *verbs) forward() *cobra.Command {
	var address string
	cmd := &cobra.Command{Use: "port-forward NAME [LOCAL:]PORT…",
		Short: "Make ports of a sandbox reachable on this machine", Args: cli.Arguments(2, -1), ValidArgsFunction: v.completeName,
		Long: "Make TCP ports of a sandbox reachable on this machine, until interrupted. Any protocol works. " +
			"The local port is the same unless another is given; 0 picks a free one.",
		Example: "  cove port-forward a 3000\n  cove port-forward a 15432:5432 8080:80",
		RunE: v.with(func(cmd *cobra.Command, c *client.Client, args []string) error {
			if _, err := c.Get(cmd.Context(), args[0]); err != nil {
				return err
			}
			return v.forwardPorts(cmd.Context(), c.Guest(args[0]), address, args[1:])
		})}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "Local address to listen on")
	return cmd
}

// forwardPorts forwards until ctx is done.
func (v *verbs) forwardPorts(ctx context.Context, g *client.Guest, address string, specs []string) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wait sync.WaitGroup
	defer wait.Wait()
	for _, spec := range specs {
		local, remote, err := parsePorts(spec)
		if err != nil {
			cancel(err)
			return err
		}
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(local)))
		if err != nil {
			err = fmt.Errorf("%w; choose another local port with LOCAL:%d", err, remote)
			cancel(err)
			return err
		}
		wait.Go(func() {
			<-ctx.Done()
			l.Close()
		})
		fmt.Fprintf(v.text.Out, "forwarding %s to port %d\n", l.Addr(), remote)
		guarded := l
		if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
			// Other users of this machine must not use our credentials.
			guarded = peer.Guard(l, nil, slog.New(slog.NewTextHandler(v.text.Err, nil)))
		}
		wait.Go(func() { v.accept(ctx, g, guarded, remote) })
	}
	<-ctx.Done()
	return nil
}

// accept forwards every connection of a listener, until it is closed.
func (v *verbs) accept(ctx context.Context, g *client.Guest, l net.Listener, port int) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wait.Go(func() {
			if err := g.Forward(ctx, port, c); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(v.text.Err, err)
			}
		})
	}
}

// parsePorts reads [LOCAL:]PORT.
func parsePorts(spec string) (local, remote int, err error) {
	first, second, two := strings.Cut(spec, ":")
	if !two {
		second = first
	}
	l, err1 := strconv.ParseUint(first, 10, 16)
	r, err2 := strconv.ParseUint(second, 10, 16)
	if err1 != nil || err2 != nil || r == 0 {
		return 0, 0, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("invalid port %q; use PORT or LOCAL:PORT", spec)}
	}
	return int(l), int(r), nil
}
