package bash

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
)

// BenchmarkTrueSpawned is the baseline of an exec.
func BenchmarkTrueSpawned(b *testing.B) {
	for b.Loop() {
		cmd := exec.Command("/bin/bash", "-c", "true")
		cmd.Env = testEnv(os.TempDir())
		if err := cmd.Run(); err != nil {
			b.Fatal(err)
		}
	}
}

func benchmarkTrue(b *testing.B, session *string) {
	s := newService(b, withGuard)
	for b.Loop() {
		if out, err := s.Exec(b.Context(), ExecIn{Command: "true", SessionID: session}); err != nil || *out.ExitCode != 0 {
			b.Fatalf("got %v %v, want exit code 0", out, err)
		}
	}
}

func BenchmarkTrueAlone(b *testing.B)   { benchmarkTrue(b, nil) }
func BenchmarkTrueSession(b *testing.B) { benchmarkTrue(b, new("s")) }

const megabytes = 100

var produce = fmt.Sprintf("head -c %d /dev/zero", megabytes*1_000_000)

// BenchmarkBulkPipe is the baseline of reading by offsets.
func BenchmarkBulkPipe(b *testing.B) {
	b.SetBytes(megabytes * 1_000_000)
	for b.Loop() {
		cmd := exec.Command("/bin/bash", "-c", produce)
		out, err := cmd.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			b.Fatal(err)
		}
		n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{out}, make([]byte, 32<<10))
		if err != nil || n != megabytes*1_000_000 {
			b.Fatalf("got %v %v, want megabytes*1_000_000", n, err)
		}
		if err := cmd.Wait(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBulkOutput(b *testing.B) {
	s := newService(b)
	b.SetBytes(megabytes * 1_000_000)
	for b.Loop() {
		ran, err := s.Exec(b.Context(), ExecIn{Command: produce, SessionID: new("s"), AsyncMode: true})
		if err != nil {
			b.Fatal(err)
		}
		var at OutputResult
		for at.Command == nil || at.Command.ExitCode == nil || at.More {
			at, err = s.Output(b.Context(), OutputIn{SessionID: "s", CommandID: &ran.CommandID, Offset: at.Offset, Wait: true, WaitTimeout: 30})
			if err != nil {
				b.Fatal(err)
			}
		}
		if at.Offset != megabytes*1_000_000 {
			b.Fatalf("got %v, want megabytes*1_000_000", at.Offset)
		}
	}
}
