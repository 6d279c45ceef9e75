// Command serve runs the payload of providertest as a program, on the address of the provider, with the home folder as its
// disk.
package main

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/providertest/payload"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	if os.Getenv(payload.Env) == payload.Exit {
		fmt.Fprintln(os.Stderr, payload.LastWords)
		os.Exit(payload.ExitCode)
	}
	network, addr, ok := strings.Cut(os.Getenv(sandbox.EnvListen), ":")
	if !ok {
		return fmt.Errorf("%s has no address", sandbox.EnvListen)
	}
	l, err := net.Listen(network, addr)
	if err != nil {
		return err
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return err
	}
	s := payload.New(payload.Config{
		Read:   func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(home, name)) },
		Write:  func(name string, data []byte) error { return os.WriteFile(filepath.Join(home, name), data, 0o600) },
		Remove: func(name string) error { return os.Remove(filepath.Join(home, name)) },
		Getenv: os.Getenv,
		Exit:   os.Exit,
		Run:    func(command string) ([]byte, error) { return exec.Command("sh", "-c", command).CombinedOutput() },
	})
	defer s.Close()
	// A second listener on TCP, for providers that support any port.
	if addr := os.Getenv("PAYLOAD_TCP"); addr != "" {
		tcp, err := net.Listen("tcp", addr)
		if err != nil {
			return err
		}
		go http.Serve(tcp, s)
	}
	return http.Serve(l, s)
}
