package proxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

const (
	// credentialLife is how long the output of a credential command is valid.
	credentialLife    = 5 * time.Minute
	credentialTimeout = 10 * time.Second
	maxCommand        = 4096
	mask              = "********"
)

// upstream is an upstream proxy.
type upstream struct {
	scheme, host, port string
	user, password     string
	command            string // prints user:password

	mu    sync.Mutex
	fresh time.Time // the output of the command is valid until then
}

func parseUpstream(text string) (*upstream, error) {
	if !strings.Contains(text, "://") {
		text = "http://" + text
	}
	const want = "use host:port, or an http://, https:// or socks5:// URL"
	u, err := url.Parse(text)
	if err != nil || u.Hostname() == "" || u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "" {
		return nil, errors.New("invalid upstream proxy; " + want)
	}
	up := &upstream{scheme: strings.ToLower(u.Scheme), host: u.Hostname(), port: u.Port()}
	standard := map[string]string{"http": "80", "https": "443", "socks5": "1080", "socks5h": "1080"}[up.scheme]
	if standard == "" {
		return nil, fmt.Errorf("unknown scheme %q of the upstream proxy; %s", u.Scheme, want)
	}
	if up.port == "" {
		up.port = standard
	}
	if _, err := parsePort(up.port); err != nil {
		return nil, err
	}
	up.scheme = strings.TrimSuffix(up.scheme, "h")
	if u.User != nil {
		up.user = u.User.Username()
		up.password, _ = u.User.Password()
	}
	return up, nil
}

// address returns host:port.
func (u *upstream) address() string { return net.JoinHostPort(u.host, u.port) }

// credentials returns user and password, from the command if there is one.
func (u *upstream) credentials(ctx context.Context, runner *proc.Runner) (user, password string, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.command == "" || time.Now().Before(u.fresh) {
		return u.user, u.password, nil
	}
	ctx, cancel := context.WithTimeout(ctx, credentialTimeout)
	defer cancel()
	res, err := runner.Run(ctx, proc.Command{Path: "/bin/bash", Args: []string{"-c", u.command}, Limit: 64 << 10})
	if err != nil {
		return "", "", fmt.Errorf("run the credentials command: %w", err)
	}
	if res.Exit.Code != 0 {
		return "", "", fmt.Errorf("the credentials command failed with exit code %d: %s",
			res.Exit.Code, proc.LastLine(res.Stderr))
	}
	user, password, ok := strings.Cut(strings.TrimSpace(string(res.Stdout)), ":")
	if !ok || strings.ContainsAny(user+password, "\r\n") {
		return "", "", errors.New("the credentials command must print user:password on one line")
	}
	u.user, u.password, u.fresh = user, password, time.Now().Add(credentialLife)
	return user, password, nil
}

// expire makes the next use run the command again. It reports whether there is a command.
func (u *upstream) expire() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.fresh = time.Time{}
	return u.command != ""
}

// Upstream describes the upstream proxy.
type Upstream struct {
	Addr     string  `json:"addr" doc:"Address, with its scheme unless that is http"`
	Username *string `json:"username"`
	Password *string `json:"password" doc:"Masked"`
}

func (u *upstream) describe() Upstream {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := Upstream{Addr: u.address()}
	if u.scheme != "http" {
		out.Addr = u.scheme + "://" + out.Addr
	}
	if u.user != "" {
		out.Username = new(u.user)
	}
	if u.password != "" {
		out.Password = new(mask)
	}
	return out
}

// GetUpstream returns the upstream proxy, or nil.
func (s *Service) GetUpstream(context.Context, op.None) (*Upstream, error) {
	u := s.rules.Load().upstream
	if u == nil {
		return nil, nil
	}
	return new(u.describe()), nil
}

// UpstreamIn is the input of SetUpstream.
type UpstreamIn struct {
	Server  string  `json:"server" doc:"host:port, or an http://, https:// or socks5:// URL, with user:password@ if needed"`
	AuthCmd *string `json:"auth_cmd" doc:"Shell command that prints user:password; overrides the credentials in server"`
}

// SetUpstream replaces the upstream proxy.
func (s *Service) SetUpstream(ctx context.Context, in UpstreamIn) (Upstream, error) {
	u, err := parseUpstream(strings.TrimSpace(in.Server))
	if err != nil {
		return Upstream{}, op.Errorf(op.Invalid, "%w", err)
	}
	if u.command = op.Value(in.AuthCmd); len(u.command) > maxCommand {
		return Upstream{}, op.Errorf(op.Invalid, "auth_cmd exceeds the limit of %d bytes", maxCommand)
	}
	if _, _, err := u.credentials(ctx, s.cfg.Runner); err != nil {
		return Upstream{}, op.Errorf(op.Invalid, "auth_cmd: %w", err)
	}
	_ = s.change(ctx, func(r rules) (*rules, error) { r.upstream = u; return &r, nil })
	s.plain.CloseIdleConnections()
	return u.describe(), nil
}

// RemoveUpstream removes the upstream proxy.
func (s *Service) RemoveUpstream(ctx context.Context, _ op.None) (any, error) {
	_ = s.change(ctx, func(r rules) (*rules, error) { r.upstream = nil; return &r, nil })
	s.plain.CloseIdleConnections()
	return nil, nil
}
