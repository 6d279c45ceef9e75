//go:build linux

package cove

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/login"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/hub/replica"
	"github.com/cove-sandbox/cove/internal/network/certificate"
	"github.com/cove-sandbox/cove/internal/surface/cli"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// verbTable is the table of a hub that is never started.
func verbTable(version string) (*op.Table, error) {
	blank, err := New(config.Cove{Listen: "127.0.0.1:10000"}, nil, version, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return blank.Table, nil
}

// machineVerbs are the verbs that work on the machine of a hub.
type machineVerbs struct{ *verb.Verbs }

// addLocal adds the verbs that work on this machine instead of a hub.
func addLocal(root *cobra.Command, v *verb.Verbs, version string, t *login.Target) {
	m := machineVerbs{v}
	root.AddCommand(m.doctor(), m.backup(version), m.restore(), m.bugReport(version, t))
	addAudit(root, v, v.Std)
}

// browse opens a page in the browser of this machine, if there is one.
func browse(ctx context.Context, page string) error {
	runner := proc.New(proc.Config{Env: config.Environ()})
	program, ok := runner.Look("xdg-open")
	if !ok {
		return nil
	}
	_, err := runner.Run(ctx, proc.Command{Path: program, Args: []string{page}})
	return err
}

func hubCommand(version string, std host.Streams) *cobra.Command {
	cmd := &cobra.Command{Use: "hub", Short: "Serve sandboxes", Args: cli.Arguments(0, 0),
		Long: "Serve sandboxes. Settings come from defaults, then a file, then the environment, then flags; cove " +
			"config shows each with its origin."}
	flags := host.Flags(cmd, "cove", config.Fields(&config.Cove{}))
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var cfg config.Cove
		src := config.System("cove", flags())
		if _, err := config.Load(&cfg, src); err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		if err := config.Hide(src, &cfg); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		// Programs of the same user could take its sockets and the credentials in its memory.
		if err := proc.SealMemory(); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		to := std.Err
		if cfg.LogFile != "" {
			f, err := host.OpenLogFile(cfg.LogFile, int64(cfg.LogFileSize), cfg.LogFiles)
			if err != nil {
				return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
			}
			defer f.Close()
			to = f
		}
		log := host.Log(cfg.LogLevel, cfg.LogFormat, to)
		host.WarnOfSecretFlags(log, config.Fields(&cfg), flags())
		fd, err := serveHub(cmd.Context(), cfg, src.Environ, version, std, log)
		if errors.Is(err, host.ErrHandover) {
			return succeed(src.Environ, fd, log)
		}
		return err
	}
	return cmd
}

// listenVariable names the file descriptor that a successor listens on.
const listenVariable = "COVE_LISTEN_FD"

// succeed replaces this program by the one that is installed at its path now.
func succeed(environ []string, fd int, log *slog.Logger) error {
	env := slices.DeleteFunc(slices.Clone(environ), func(pair string) bool { return strings.HasPrefix(pair, listenVariable+"=") })
	signal.Ignore(syscall.SIGHUP) // until the successor is ready for it
	err := host.PassOn(fd)
	if err == nil {
		err = proc.Replace(programPath(), os.Args, append(env, listenVariable+"="+strconv.Itoa(fd)))
	}
	log.Error("cannot start the successor", "error", err)
	return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
}

// programPath is where this program was started from. A package manager may have replaced
// the file since.
func programPath() string {
	path, err := os.Executable()
	if err != nil {
		return os.Args[0]
	}
	return strings.TrimSuffix(path, " (deleted)")
}

// upgrades fires when a SIGHUP requests an upgrade and the installed program accepts the
// settings. Otherwise it logs the reason, and this program continues to serve.
func upgrades(ctx context.Context, environ []string, secure *certificate.Pair, log *slog.Logger) <-chan struct{} {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGHUP)
	next := make(chan struct{})
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-asked:
			}
			err := tryProgram(ctx, environ)
			if err == nil && secure != nil {
				err = secure.Check() // the successor would not start
			}
			if err != nil {
				log.Error("no upgrade: the installed program does not accept the settings", "error", err)
				continue
			}
			select {
			case next <- struct{}{}:
			case <-ctx.Done():
			}
			return
		}
	}()
	return next
}

// tryProgram checks whether the installed program accepts these settings.
func tryProgram(ctx context.Context, environ []string) error {
	args := slices.Clone(os.Args[1:])
	for i, arg := range args {
		if arg == "hub" {
			args[i] = "config"
			break
		}
	}
	runner := proc.New(proc.Config{Env: environ})
	result, err := runner.Run(ctx, proc.Command{Path: programPath(), Args: args})
	if err == nil && result.Exit.Code != 0 {
		err = errors.New(strings.TrimSpace(string(result.Stderr)))
	}
	return err
}

// serveHub serves until it is stopped or replaced by a successor; then fd is the listening socket.
func serveHub(ctx context.Context, cfg config.Cove, environ []string, version string, std host.Streams,
	log *slog.Logger) (fd int, err error) {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := checkSettings(cfg); err != nil {
		return 0, &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	secure, err := openCertificate(cfg, log)
	if err != nil {
		return 0, &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
	}
	next := upgrades(ctx, environ, secure, log) // before clients can know the hub and request an upgrade
	l, err := listen(cfg)
	if err != nil {
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	if fd, err = host.KeepListener(l); err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	if cfg.ReplicaAddress != "" {
		m, err := replica.Join(ctx, l, replica.Config{Dir: cfg.State, Address: cfg.ReplicaAddress, Log: log})
		if ctx.Err() != nil { // it was not needed
			return 0, nil
		}
		if err != nil {
			return 0, &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		defer m.Leave() // when everything is closed
		l = m
	}
	cfg, stopBuild, err := startVenv(ctx, cfg, environ, requirements, log)
	if err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	defer stopBuild()
	provider, err := openProvider(ctx, cfg, log)
	if err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: err.Error() + "; " + alternatives}
	}
	able := provider.Abilities()
	if text := summarize(able.Missing, slices.Contains(able.Limits, "memory")); text != "" {
		log.Warn(text)
	}
	h, err := New(cfg, provider, version, log)
	if err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: errors.Join(err, provider.Close()).Error()}
	}
	if err := h.hub.CreateFirstKey(std.Out); err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: errors.Join(err, h.Close()).Error()}
	}
	at := "http://" + l.Addr().String()
	switch {
	case l.Addr().Network() == "unix":
		at = "unix:" + l.Addr().String()
	case secure != nil:
		at, h.address = "https://"+l.Addr().String(), certifiedAddress(l.Addr(), secure)
		l = tls.NewListener(l, secure.ServerConfig(isPortName))
	}
	forget, err := publishAddress(cfg.State, at)
	if err != nil {
		l.Close()
		return 0, &cli.Error{Code: cli.ExitFailed, Msg: errors.Join(err, h.Close()).Error()}
	}
	defer forget()
	announceHub(std.Out, at)
	// One hub serves hundreds of sandboxes: CPU time is worth more than memory.
	if asked := debug.SetGCPercent(400); asked != 100 {
		debug.SetGCPercent(asked)
	}
	return fd, host.ServeUntil(ctx, next, l, h, log)
}

// listen opens the listening socket, or takes over that of the program which this one replaces,
// together with its children.
func listen(cfg config.Cove) (net.Listener, error) {
	if cfg.ListenFD == 0 {
		return host.Listen(cfg.Listen, "COVE_LISTEN")
	}
	wait, err := proc.ReapInherited()
	if err != nil {
		return nil, err
	}
	go wait()
	return host.Inherit(cfg.ListenFD)
}

// openCertificate reads the certificate of a hub that serves HTTPS; nil if it does not.
func openCertificate(cfg config.Cove, log *slog.Logger) (*certificate.Pair, error) {
	if cfg.TLSCert == "" {
		return nil, nil
	}
	secure, err := certificate.Open(certificate.Config{CertFile: cfg.TLSCert, KeyFile: cfg.TLSKey, Log: log})
	if err != nil {
		return nil, err
	}
	for _, domain := range cfg.Domains {
		if err := secure.CheckSubdomains(domain); err != nil && domain != "localhost" {
			log.Warn("clients will not accept the TLS certificate for sandboxes below this domain", "domain", domain, "error", err)
		}
	}
	return secure, nil
}

// isPortName reports whether a host name is that of a sandbox's port, where only HTTP/1.1 is
// offered: Python's usual HTTP library lets a call wait for a stream of another thread, such as
// a terminal's, if they share an HTTP/2 connection.
func isPortName(name string) bool {
	label, _, below := strings.Cut(name, ".")
	digits, _, ok := strings.Cut(label, "-")
	_, err := strconv.ParseUint(digits, 10, 16)
	return below && ok && err == nil
}

// certifiedAddress is the URL of a hub with a name of its certificate, where it has one.
func certifiedAddress(addr net.Addr, secure *certificate.Pair) string {
	host := addr.String()
	if _, port, err := net.SplitHostPort(host); err == nil && secure.Host() != "" {
		host = net.JoinHostPort(secure.Host(), port)
	}
	return "https://" + host
}

// publishAddress stores the address of the hub for the command line of the hub's own user. That user
// needs no certificate, because it can open the socket.
func publishAddress(state, at string) (forget func(), err error) {
	if strings.HasPrefix(at, "https:") {
		at = "unix:" + filepath.Join(state, login.SocketFile)
	}
	path := filepath.Join(state, login.URLFile)
	err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600}, func(f *os.File) error {
		_, err := f.WriteString(at + "\n")
		return err
	})
	return func() { os.Remove(path) }, err
}

// announceHub prints the addresses of the hub.
func announceHub(w io.Writer, at string) {
	fmt.Fprintf(w, "serving on %s\n", at)
	if !strings.HasPrefix(at, "unix:") {
		fmt.Fprintf(w, "  guide %s/guide\n  docs  %[1]s/v1/docs\n  MCP   %[1]s/mcp\n  try   cove create a && cove exec a -- uname -a\n", at)
	}
}
