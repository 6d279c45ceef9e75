package mcp

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

// TestBodiesAreComplete: bodies of every length arrive completely, and an interrupted body is an error.
func TestBodiesAreComplete(t *testing.T) {
	t.Parallel()
	var b bodies
	for _, size := range []int{0, 1, pieceSize - 1, pieceSize, pieceSize + 1, 3*pieceSize + 7} {
		want := bytes.Repeat([]byte("0123456789"), size/10+1)[:size]
		for _, length := range []int64{int64(size), -1} {
			for name, r := range map[string]io.Reader{"at once": bytes.NewReader(want),
				"in halves": iotest.HalfReader(bytes.NewReader(want)), "end with data": iotest.DataErrReader(bytes.NewReader(want))} {
				if got, err := b.read(r, length); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%d bytes of length %d, %s: got %d bytes, %v", size, length, name, len(got), err)
				}
			}
			cut := io.MultiReader(bytes.NewReader(want), iotest.ErrReader(io.ErrUnexpectedEOF))
			if got, err := b.read(cut, length+1); length >= 0 && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("%d bytes, interrupted: got %d bytes, %v, want %v", size, len(got), err, io.ErrUnexpectedEOF)
			}
		}
	}
}
