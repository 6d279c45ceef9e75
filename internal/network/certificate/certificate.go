// Package certificate owns TLS certificates: that of a server, which it reads from files and
// reloads when they change, those that it creates for a single machine, and the authority with
// which a proxy impersonates hosts.
//
// It has no goroutine: handshakes detect that the files have changed. If the new files are
// unusable, the previous certificate remains in use.
package certificate

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"
)

// maxFile is larger than any chain of certificates.
const maxFile = 1 << 20

// Config configures a Pair.
type Config struct {
	CertFile string // chain in PEM, the server's own certificate first
	KeyFile  string // its private key in PEM
	Log      *slog.Logger
}

// Pair is a certificate with its key.
type Pair struct {
	Config

	mu     sync.Mutex
	cert   *tls.Certificate
	loaded state // of the files when they were last read
	failed bool  // the files could not be used
}

// state detects changes of the files.
type state [2]os.FileInfo

func (s state) equals(other state) bool {
	for i := range s {
		a, b := s[i], other[i]
		if a == nil || b == nil {
			if a != b {
				return false
			}
		} else if !os.SameFile(a, b) || a.Size() != b.Size() || !a.ModTime().Equal(b.ModTime()) {
			return false
		}
	}
	return true
}

// Open reads a certificate.
func Open(cfg Config) (*Pair, error) {
	p := &Pair{Config: cfg}
	p.loaded = p.stat()
	cert, err := p.read()
	if err != nil {
		return nil, err
	}
	p.cert = cert
	p.warn(cert)
	return p, nil
}

func (p *Pair) stat() (s state) {
	for i, path := range []string{p.CertFile, p.KeyFile} {
		if info, err := os.Stat(path); err == nil {
			s[i] = info
		}
	}
	return s
}

func (p *Pair) read() (*tls.Certificate, error) {
	chain, err := readFile(p.CertFile)
	if err != nil {
		return nil, fmt.Errorf("read the TLS certificate: %w", err)
	}
	key, err := readFile(p.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read the TLS key: %w", err)
	}
	cert, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("use the TLS certificate %q with the key %q: %w; both must be PEM, the server's own "+
			"certificate first, and the key must belong to it", p.CertFile, p.KeyFile, err)
	}
	return &cert, nil
}

func readFile(path string) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%q is not a regular file", path)
	case info.Size() > maxFile:
		return nil, fmt.Errorf("%q is larger than %d bytes", path, maxFile)
	}
	return os.ReadFile(path)
}

// warn logs an invalid date, and a key that every user can read.
func (p *Pair) warn(cert *tls.Certificate) {
	now := time.Now()
	if now.Before(cert.Leaf.NotBefore) || now.After(cert.Leaf.NotAfter) {
		p.Log.Warn("the TLS certificate is expired or not yet valid", "file", p.CertFile,
			"from", cert.Leaf.NotBefore, "until", cert.Leaf.NotAfter)
	}
	if info, err := os.Stat(p.KeyFile); err == nil && info.Mode().Perm()&0o007 != 0 {
		p.Log.Warn("every user of this machine can read the TLS key; run chmod o= on it", "file", p.KeyFile)
	}
}

// current returns the certificate. It reloads files that have changed.
func (p *Pair) current() *tls.Certificate {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.stat()
	changed := !now.equals(p.loaded)
	if !changed && !p.failed {
		return p.cert
	}
	cert, err := p.read()
	p.loaded, p.failed = now, err != nil
	switch {
	case err == nil:
		p.cert = cert
		p.Log.Info("TLS certificate reloaded", "file", p.CertFile, "until", cert.Leaf.NotAfter)
		p.warn(cert)
	case changed:
		p.Log.Error("cannot reload the TLS certificate; keeping the previous one", "error", err)
	}
	return p.cert
}

// ServerConfig returns the configuration of a server with this certificate. It offers HTTP/2,
// except for names that plain reports; plain may be nil.
func (p *Pair) ServerConfig(plain func(name string) bool) *tls.Config {
	c := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		NextProtos:     []string{"h2", "http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return p.current(), nil },
	}
	if plain != nil {
		old := c.Clone()
		old.NextProtos = []string{"http/1.1"}
		c.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			if plain(hello.ServerName) {
				return old, nil
			}
			return nil, nil // no change
		}
	}
	return c
}

// Host returns a host name for which the certificate is valid; empty if it has only wildcards.
func (p *Pair) Host() string {
	for _, name := range p.current().Leaf.DNSNames {
		if !strings.HasPrefix(name, "*.") {
			return name
		}
	}
	return ""
}

// Check returns an error if the files cannot be used.
func (p *Pair) Check() error {
	_, err := p.read()
	return err
}

// CheckSubdomains returns an error if the certificate is not valid for the names below a domain.
func (p *Pair) CheckSubdomains(domain string) error {
	if p.current().Leaf.VerifyHostname("x."+domain) != nil {
		return errors.New("it has no name *." + domain)
	}
	return nil
}
