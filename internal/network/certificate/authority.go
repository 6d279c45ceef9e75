//go:build unix

package certificate

import (
	"bytes"
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 30 * 24 * time.Hour
	leafLife       = 7 * 24 * time.Hour
	leafRenew      = 24 * time.Hour
	skew           = time.Hour // of clocks in sandboxes
	maxLeaves      = 1024
)

// Authority issues the certificates with which a proxy impersonates hosts: the hub's for hosts
// with credentials, the sandbox's for mapped hosts. Programs must trust it.
//
// Its key is in a file that only its owner can read. It refuses clients that request the
// certificate of another host than the one that they connected to.
type Authority struct {
	cert *x509.Certificate
	sign *ecdsa.PrivateKey
	key  *ecdsa.PrivateKey // of all leaves
	pem  []byte

	mu     sync.Mutex
	leaves map[string]*list.Element
	order  list.List // most recently used first
}

type leaf struct {
	host string
	cert *tls.Certificate
}

// OpenAuthority reads an authority and its key from a file, or creates them there.
// It replaces an authority that is about to expire.
func OpenAuthority(path string) (*Authority, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createAuthority(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open certificate authority: %w", err)
	}
	a, err := parseAuthority(data)
	if err != nil {
		return nil, fmt.Errorf("open certificate authority %q: %w; restore the file, or remove it and restart all "+
			"sandboxes that use it", path, err)
	}
	if time.Until(a.cert.NotAfter) < authorityRenew {
		return createAuthority(path)
	}
	return a, nil
}

// readPrivate reads a small file that must not be readable by others.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > 64<<10:
		return nil, fmt.Errorf("%q is not a certificate authority file", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%q is readable by others; run chmod 600 on it, or remove it if others may have read it", path)
	}
	return os.ReadFile(path)
}

func parseAuthority(data []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(data, data)
	if err != nil {
		return nil, err
	}
	sign, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !pair.Leaf.IsCA {
		return nil, errors.New("it contains no certificate authority")
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{
		cert: pair.Leaf, sign: sign, key: leafKey, leaves: map[string]*list.Element{},
		pem: encode("CERTIFICATE", pair.Leaf.Raw),
	}, nil
}

func createAuthority(path string) (*Authority, error) {
	data, err := newAuthority()
	if err == nil {
		err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			_, err := f.Write(data)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("create certificate authority: %w", err)
	}
	return parseAuthority(data)
}

func newAuthority() ([]byte, error) {
	sign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	number := serial()
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: number,
		// The name is unique, so that the authorities of two hubs differ.
		Subject:   pkix.Name{Organization: []string{"Cove"}, CommonName: fmt.Sprintf("Cove brokered hosts %x", number.Bytes()[:4])},
		NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
	}
	cert, err := x509.CreateCertificate(rand.Reader, ca, ca, &sign.PublicKey, sign)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(sign)
	if err != nil {
		return nil, err
	}
	return append(encode("CERTIFICATE", cert), encode("PRIVATE KEY", private)...), nil
}

// PEM returns the certificate that programs must trust, without the key.
func (a *Authority) PEM() []byte { return bytes.Clone(a.pem) }

// Pool returns a pool with the certificate.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// PublicKeyHash returns the SHA-256 of the public key, which Chromium's flags identify it by.
func (a *Authority) PublicKeyHash() [sha256.Size]byte {
	return sha256.Sum256(a.cert.RawSubjectPublicKeyInfo)
}

// Certificate returns a certificate for a host. The name must be in lower case.
func (a *Authority) Certificate(host string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e := a.leaves[host]; e != nil {
		if l := e.Value.(*leaf); time.Until(l.cert.Leaf.NotAfter) > leafRenew {
			a.order.MoveToFront(e)
			return l.cert, nil
		}
		a.drop(e)
	}
	cert, err := a.issue(host)
	if err != nil {
		return nil, fmt.Errorf("issue certificate for %q: %w", host, err)
	}
	a.leaves[host] = a.order.PushFront(&leaf{host, cert})
	if a.order.Len() > maxLeaves {
		a.drop(a.order.Back())
	}
	return cert, nil
}

func (a *Authority) drop(e *list.Element) {
	delete(a.leaves, a.order.Remove(e).(*leaf).host)
}

func (a *Authority) issue(host string) (*tls.Certificate, error) {
	now := time.Now()
	names, ips := []string{host}, []net.IP(nil)
	if ip := net.ParseIP(host); ip != nil {
		names, ips = nil, []net.IP{ip}
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{Organization: []string{"Cove brokered host"}},
		DNSNames:     names, IPAddresses: ips,
		NotBefore: now.Add(-skew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}, a.cert, &a.key.PublicKey, a.sign)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(raw)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{raw, a.cert.Raw}, PrivateKey: a.key, Leaf: parsed}, nil
}

// ServerConfig returns the TLS configuration with which a proxy impersonates a host. The name
// must be in lower case. It refuses a client that requests the certificate of another host.
func (a *Authority) ServerConfig(host string) (*tls.Config, error) {
	cert, err := a.Certificate(host)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name := strings.ToLower(strings.TrimSuffix(hello.ServerName, ".")); name != "" && name != host {
				return nil, fmt.Errorf("the connection is to %q but requests the certificate of %.80q", host, hello.ServerName)
			}
			return cert, nil
		},
		// Every connection must be checked.
		SessionTicketsDisabled: true,
	}, nil
}
