//go:build unix

package verb

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
)

// rawTerminal puts the terminal into raw mode and sends its size, now and whenever it
// changes.
func rawTerminal(ctx context.Context, f *os.File) (restore func(), resized <-chan client.Size, err error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	changed := make(chan os.Signal, 1)
	changed <- syscall.SIGWINCH
	signal.Notify(changed, syscall.SIGWINCH)
	sizes := make(chan client.Size)
	go func() {
		defer close(sizes)
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			cols, rows, err := term.GetSize(int(f.Fd()))
			if err != nil {
				continue
			}
			select {
			case <-ctx.Done():
				return
			case sizes <- client.Size{Cols: cols, Rows: rows}:
			}
		}
	}()
	return func() {
		signal.Stop(changed)
		term.Restore(int(f.Fd()), old) //nolint:errcheck // the terminal may be gone
	}, sizes, nil
}
