package verb

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
)

// rawTerminal puts the terminal into raw mode and sends its size.
func rawTerminal(_ context.Context, f *os.File) (restore func(), resized <-chan client.Size, err error) {
	old, err := term.MakeRaw(int(f.Fd()))
	if err != nil {
		return nil, nil, fmt.Errorf("prepare the terminal: %w", err)
	}
	sizes := make(chan client.Size, 1)
	if cols, rows, err := term.GetSize(int(f.Fd())); err == nil {
		sizes <- client.Size{Cols: cols, Rows: rows}
	}
	return func() { term.Restore(int(f.Fd()), old) }, sizes, nil
}
