package verb

import (
	"context"
	"errors"
	"fmt"
	"io"
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

func (v *Verbs) forward() *cobra.Command {
	var address string
	var reverse []string
	cmd := &cobra.Command{Use: "port-forward NAME [LOCAL:]PORT…", Aliases: []string{"forward"},
		Short: "Make ports of a sandbox reachable on this machine", Args: cli.Arguments(1, -1), ValidArgsFunction: v.completeName,
		Long: "Make TCP ports of a sandbox reachable on this machine, until interrupted. Any protocol works. " +
			"The local port is the same unless another is given; 0 picks a free one.\n\n" +
			"With --reverse, programs in the sandbox reach a port of this machine, at 127.0.0.1 inside. All of them can, so " +
			"forward only what the sandbox may use.",
		Example: "  cove port-forward a 3000\n  cove port-forward a 15432:5432 8080:80\n" +
			"  cove port-forward a -R 11434               # programs in a reach port 11434 of this machine\n" +
			"  cove port-forward a -R 8000:localhost:3000",
		RunE: v.With(func(cmd *cobra.Command, c *client.Client, args []string) error {
			back, err := parseReverse(reverse)
			if err != nil {
				return err
			}
			if len(args)+len(back) < 2 {
				return &cli.Error{Code: cli.ExitUsage, Msg: "no port given; use PORT or LOCAL:PORT, or --reverse PORT"}
			}
			if _, err := c.Get(cmd.Context(), args[0]); err != nil {
				return err
			}
			return v.forwardPorts(cmd.Context(), c.Guest(args[0]), address, args[1:], back)
		})}
	cmd.Flags().StringVar(&address, "address", "127.0.0.1", "Local address to listen on")
	cmd.Flags().StringArrayVarP(&reverse, "reverse", "R", nil,
		"Port inside that leads to this machine, PORT, PORT:LOCAL or PORT:HOST:LOCAL; repeatable")
	return cmd
}

// forwardPorts forwards until ctx is done or a port inside is lost.
func (v *Verbs) forwardPorts(ctx context.Context, g *client.Guest, address string, specs []string, back []reversal) error {
	stop, err := v.listenPorts(ctx, g, address, specs, v.Text.Out)
	if err != nil {
		return err
	}
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var work sync.WaitGroup
	for _, r := range back {
		work.Go(func() {
			if err := v.reverse(ctx, g, r); err != nil {
				cancel(err)
			}
		})
	}
	<-ctx.Done()
	work.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// publish makes ports reachable on this machine until stop is called.
func (v *Verbs) publish(ctx context.Context, g *client.Guest, specs []string) (stop func(), err error) {
	return v.listenPorts(ctx, g, "127.0.0.1", specs, v.Text.Err)
}

// listenPorts forwards connections until stop is called, which waits for them to end.
func (v *Verbs) listenPorts(ctx context.Context, g *client.Guest, address string, specs []string,
	report io.Writer,
) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	stop = func() {
		cancel()
		wait.Wait()
	}
	for _, spec := range specs {
		local, remote, err := parsePorts(spec)
		if err != nil {
			stop()
			return nil, err
		}
		l, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(local)))
		if err != nil {
			stop()
			return nil, fmt.Errorf("%w; choose another local port with LOCAL:%d", err, remote)
		}
		wait.Go(func() {
			<-ctx.Done()
			l.Close()
		})
		fmt.Fprintf(report, "forwarding %s to port %d\n", l.Addr(), remote)
		guarded := l
		if at, ok := l.Addr().(*net.TCPAddr); ok && at.IP.IsLoopback() {
			// Other users of this machine must not use our credentials.
			guarded = peer.Guard(l, nil, slog.New(slog.NewTextHandler(v.Text.Err, nil)))
		}
		wait.Go(func() { v.accept(ctx, g, guarded, remote) })
	}
	return stop, nil
}

// accept forwards every connection of a listener, until it is closed.
func (v *Verbs) accept(ctx context.Context, g *client.Guest, l net.Listener, port int) {
	var wait sync.WaitGroup
	defer wait.Wait()
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		wait.Go(func() {
			if err := g.Forward(ctx, port, c); err != nil && ctx.Err() == nil && !errors.Is(err, net.ErrClosed) {
				fmt.Fprintln(v.Text.Err, err)
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
