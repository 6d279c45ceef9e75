package proxy

import (
	"bytes"
	"context"
	_ "embed" // the preload of Node.js
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/guest/internal/environ"
	"github.com/cove-sandbox/cove/internal/network/certificate"
)

// bundleVariables name a file with all certificate authorities that a program trusts.
var bundleVariables = []string{"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "GIT_SSL_CAINFO", "PIP_CERT",
	"AWS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "DENO_CERT"}

// bundles are the usual files with trusted authorities.
var bundles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem"}

// nodeProxy makes fetch, http and https use HTTP_PROXY in versions of Node.js that ignore it.
//
//go:embed node.cjs
var nodeProxy []byte

func folder(state string) string { return filepath.Join(state, "outbound") }

func openAuthority(state string) (*certificate.Authority, error) {
	if err := os.MkdirAll(folder(state), 0o700); err != nil {
		return nil, err
	}
	return certificate.OpenAuthority(filepath.Join(folder(state), "authority.pem"))
}

// Trust makes programs trust the sandbox's authority and Node.js use the proxy: it writes the files and returns the
// environment with the variables that name them. The written bundle includes one that the environment already names.
func Trust(state string, env []string) ([]string, error) {
	ca, err := openAuthority(state)
	if err != nil {
		return env, err
	}
	bundle := filepath.Join(folder(state), "ca.pem")
	var all bytes.Buffer
	for _, path := range append([]string{environ.Get(env, "SSL_CERT_FILE")}, bundles...) {
		if path == "" || path == bundle {
			continue
		}
		if b, err := os.ReadFile(path); err == nil {
			all.Write(b)
			break
		}
	}
	all.WriteByte('\n')
	all.Write(ca.PEM())
	preload := filepath.Join(folder(state), "node.cjs")
	for path, content := range map[string][]byte{bundle: all.Bytes(), preload: nodeProxy} {
		err := atomicfile.Replace(path, atomicfile.Options{Perm: 0o644}, func(f *os.File) error {
			_, err := f.Write(content)
			return err
		})
		if err != nil {
			return env, err
		}
	}
	env = slices.Clone(env)
	for _, name := range bundleVariables {
		env = environ.Set(env, name, bundle)
	}
	if options := environ.Get(env, "NODE_OPTIONS"); !strings.Contains(options, preload) && !strings.ContainsAny(preload, ` "\`) {
		env = environ.Set(env, "NODE_OPTIONS", strings.TrimSpace(options+" --require="+preload))
	}
	return env, nil
}

// point makes new programs use the proxy, and trust mapped hosts if there are any. The caller must hold s.mu.
func (s *Service) point(ctx context.Context, r *rules) {
	if s.cfg.Runner == nil || s.cfg.Environ == nil {
		return
	}
	env, before := s.cfg.Runner.Environ(), s.pointed && s.trusted
	if !s.pointed && (len(r.mappings) > 0 || r.upstream != nil) {
		s.pointed = true
		for _, pair := range s.cfg.Environ() {
			if name, value, _ := strings.Cut(pair, "="); environ.Get(env, name) == "" {
				env = environ.Set(env, name, value)
			}
		}
	}
	if !s.trusted && len(r.mappings) > 0 {
		trusting, err := Trust(s.cfg.State, env)
		if err != nil {
			s.cfg.Log.Warn("programs do not trust mapped hosts", "error", err)
		} else {
			env, s.trusted = trusting, true
		}
	}
	if !before && s.pointed {
		s.cfg.Runner.Amend(env)
		op.Hint(ctx, "the browser and new shells and programs use the change immediately; restart running programs if they do not")
	}
}

// SetPointed records that programs use the proxy from the start, and whether they trust mapped hosts.
func (s *Service) SetPointed(trusting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pointed, s.trusted = true, trusting
}

// BrowserSwitches returns the switches that make Chromium trust the sandbox's authority. The second one hides a warning about
// the first.
func (s *Service) BrowserSwitches() []string {
	ca, err := s.ca()
	if err != nil {
		s.cfg.Log.Warn("the browser does not trust mapped hosts", "error", err)
		return nil
	}
	hash := ca.PublicKeyHash()
	return []string{"--ignore-certificate-errors-spki-list=" + base64.StdEncoding.EncodeToString(hash[:]), "--test-type"}
}
