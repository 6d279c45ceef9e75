package image

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"github.com/cove-sandbox/cove/internal/network/egress"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// repository is the source of an image in a registry.
type repository struct {
	repo   name.Repository
	puller *remote.Puller
}

// remote finds an image in its registry.
func (s *Store) remote(ctx context.Context, ref string) (found, error) {
	if isReserved(ref) {
		return found{}, fmt.Errorf("%w: %s: %w", ErrNotFound, ref, errNotStored)
	}
	r, err := s.parse(ref)
	if err != nil {
		return found{}, err
	}
	puller, err := remote.NewPuller(remote.WithTransport(tlsOnly{s}), remote.WithAuthFromKeychain(keychain{s}),
		remote.WithUserAgent("cove"), remote.WithContext(ctx))
	if err != nil {
		return found{}, fmt.Errorf("connect to the registry: %w", err)
	}
	top, err := puller.Get(ctx, r)
	if err != nil {
		return found{}, blame(explain(err, ref))
	}
	f, err := find(ctx, repository{r.Context(), puller}, top.Descriptor)
	if err != nil {
		return found{}, blame(explain(err, ref))
	}
	for i := range f.layers {
		f.layers[i].from, f.layers[i].scope = r.Context().RegistryStr(), r.Context().Name()
	}
	return f, nil
}

func (g repository) manifest(ctx context.Context, d v1.Descriptor) ([]byte, error) {
	got, err := g.puller.Get(ctx, g.repo.Digest(d.Digest.String()))
	if err != nil {
		return nil, err
	}
	return got.Manifest, nil
}

func (g repository) blob(ctx context.Context, d v1.Descriptor) (io.ReadCloser, error) {
	l, err := g.puller.Layer(ctx, g.repo.Digest(d.Digest.String()))
	if err != nil {
		return nil, err
	}
	return l.Compressed()
}

// parse reads a reference as the docker command does.
func (s *Store) parse(ref string) (name.Reference, error) {
	r, err := name.ParseReference(ref, name.WeakValidation)
	if err != nil {
		return nil, fmt.Errorf("%w: %q is not an image reference; use one like debian:12 or host/name@sha256:…: %w", ErrInvalid, ref, err)
	}
	if s.insecure(r.Context().RegistryStr()) {
		return name.ParseReference(ref, name.WeakValidation, name.Insecure)
	}
	return r, nil
}

// explain adds the error code for callers, and advice, to an error of a registry.
func explain(err error, ref string) error {
	if te, ok := errors.AsType[*transport.Error](err); ok {
		switch te.StatusCode {
		case http.StatusNotFound:
			return fmt.Errorf("%w: %s; check its name and tag: %w", ErrNotFound, ref, err)
		case http.StatusUnauthorized, http.StatusForbidden:
			return fmt.Errorf("%w: %s does not exist or requires authentication; run docker login and set "+
				"registry_auth to its config file: %w", ErrDenied, ref, err)
		case http.StatusTooManyRequests:
			return fmt.Errorf("%w: rate limit exceeded for %s; wait, or authenticate: %w", ErrDenied, ref, err)
		}
		return fmt.Errorf("%w: get image %s: %w", ErrRegistry, ref, err)
	}
	switch {
	case errors.Is(err, errNotAllowed):
		return fmt.Errorf("%w: get image %s: %w", ErrDenied, ref, err)
	case isNetwork(err):
		if dns, ok := errors.AsType[*net.DNSError](err); ok {
			err = &net.DNSError{Err: dns.Err, Name: dns.Name} // without the address of the resolver
		}
		return fmt.Errorf("%w: get image %s: %w; check the name, and that the hub can reach the registry", ErrRegistry, ref, err)
	}
	return fmt.Errorf("get image %s: %w", ref, err)
}

// blame makes an unknown error of a request to a registry one of the registry: neither the caller nor
// this program caused it.
func blame(err error) error {
	if errors.Is(err, sandbox.ErrInvalid) || errors.Is(err, sandbox.ErrUpstream) || errors.Is(err, context.Canceled) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrRegistry, err)
}

// errNotAllowed reports that the operator has not allowed a registry.
var errNotAllowed = errors.New("the operator can allow it")

// isNetwork reports whether the way to a registry caused an error, or the registry itself.
func isNetwork(err error) bool {
	_, network := errors.AsType[net.Error](err)
	_, verify := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	return network || verify || record || isTransient(err)
}

// isReserved reports whether a reference names a registry that cannot exist. Imported images have
// such references.
func isReserved(ref string) bool {
	host, _, _ := strings.Cut(ref, "/")
	return strings.HasSuffix(host, ".invalid")
}

// tlsOnly rejects requests without TLS except to insecure registries.
type tlsOnly struct{ s *Store }

func (t tlsOnly) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.URL.Scheme != "https" && !t.s.insecure(req.URL.Host) {
		return nil, fmt.Errorf("%s does not use TLS; %w as an insecure registry", req.URL.Host, errNotAllowed)
	}
	return t.s.client.RoundTrip(req)
}

// insecure reports whether a registry, with or without port, may be used without TLS.
func (s *Store) insecure(host string) bool { return listed(s.cfg.Insecure, host) }

func listed(list []string, host string) bool {
	for _, h := range list {
		if strings.EqualFold(h, host) {
			return true
		}
	}
	return false
}

// transport connects to public addresses, and to others only for hosts that the
// operator named. Addresses are checked when they are connected to, so neither a
// redirect nor a name that changes its address circumvents it.
func (s *Store) transport() *http.Transport {
	free := &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}
	public := &net.Dialer{Timeout: free.Timeout, KeepAlive: free.KeepAlive, Control: func(_, addr string, _ syscall.RawConn) error {
		if ap, err := netip.ParseAddrPort(addr); err != nil || !egress.Public(ap.Addr()) {
			return fmt.Errorf("%s is not a public address; %w as a private or insecure registry", addr, errNotAllowed)
		}
		return nil
	}}
	return &http.Transport{
		Proxy: s.cfg.Proxy,
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(addr)
			if err != nil {
				return nil, err
			}
			if s.insecure(addr) || port == "80" && s.insecure(host) || port == "443" && s.insecure(host) ||
				listed(s.cfg.Private, addr) || port == "443" && listed(s.cfg.Private, host) {
				return free.DialContext(ctx, network, addr)
			}
			return public.DialContext(ctx, network, addr)
		},
		ForceAttemptHTTP2: true, MaxIdleConns: 16, IdleConnTimeout: 30 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
		ResponseHeaderTimeout: time.Minute, MaxResponseHeaderBytes: 64 << 10,
	}
}

// keychain looks up credentials in docker's config file. It reads the file for each
// pull, because credentials expire and are renewed.
type keychain struct{ s *Store }

func (k keychain) Resolve(r authn.Resource) (authn.Authenticator, error) {
	if k.s.cfg.AuthFile == "" {
		return authn.Anonymous, nil
	}
	raw, err := os.ReadFile(k.s.cfg.AuthFile)
	if errors.Is(err, os.ErrNotExist) {
		return authn.Anonymous, nil
	}
	var file struct {
		Auths   map[string]authn.AuthConfig `json:"auths"`
		Store   string                      `json:"credsStore"`
		Helpers map[string]string           `json:"credHelpers"`
	}
	if err == nil {
		err = json.Unmarshal(raw, &file)
	}
	if err != nil {
		return nil, fmt.Errorf("read registry credentials: %w", err)
	}
	logins := map[string]authn.AuthConfig{}
	for key, c := range file.Auths {
		if c != (authn.AuthConfig{}) {
			logins[loginKey(key)] = c
		}
	}
	// The credentials for the longest prefix of the name apply.
	for at := r.String(); ; {
		if c, ok := logins[at]; ok {
			return authn.FromConfig(c), nil
		}
		i := strings.LastIndexByte(at, '/')
		if i < 0 {
			break
		}
		at = at[:i]
	}
	if file.Store != "" || file.Helpers[r.RegistryStr()] != "" {
		k.s.cfg.Log.Warn("credential helpers are not supported; pulling anonymously", "registry", r.RegistryStr())
	}
	return authn.Anonymous, nil
}

// loginKey normalizes the ways in which docker writes a registry.
func loginKey(key string) string {
	key = strings.TrimPrefix(strings.TrimPrefix(key, "https://"), "http://")
	key = strings.TrimSuffix(key, "/")
	key = strings.TrimSuffix(strings.TrimSuffix(key, "/v1"), "/v2")
	if key == "docker.io" || key == "registry-1.docker.io" {
		return name.DefaultRegistry
	}
	return key
}
