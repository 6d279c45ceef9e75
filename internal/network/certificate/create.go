package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"sync"
	"time"
)

// life is the validity of what Create issues: the longest that all systems accept of an authority
// that a user has added.
const life = 825 * 24 * time.Hour

// Files are the paths of what Create has written.
type Files struct {
	Authority string // certificate that clients must trust
	Cert      string
	Key       string
}

// domainName is compiled when it is needed: that takes 0.3 ms, and servers start without it.
var domainName = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?\.)+[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
})

// Create issues an authority and a certificate for a domain, all names below it and this machine's
// loopback addresses, in a folder that only its owner can enter. It overwrites nothing.
//
// The authority's key is discarded, and the authority is limited to these names: a program that
// trusts it trusts no other certificate.
func Create(dir, domain string) (Files, error) {
	if len(domain) > 200 || !domainName().MatchString(domain) {
		return Files{}, fmt.Errorf("%q is not a domain for a wildcard certificate; use at least two labels in "+
			"lower case, such as cove.localhost", domain)
	}
	if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
		return Files{}, fmt.Errorf("%q is not empty, and nothing is overwritten; use the certificate there, remove "+
			"the folder, or choose another one", dir)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return Files{}, fmt.Errorf("create a certificate: %w", err)
	}
	content, err := issue(domain)
	if err == nil {
		err = writeFolder(dir, content)
	}
	if err != nil {
		return Files{}, fmt.Errorf("create a certificate: %w", err)
	}
	return Files{filepath.Join(dir, authorityFile), filepath.Join(dir, certFile), filepath.Join(dir, keyFile)}, nil
}

const (
	authorityFile = "ca.pem"
	certFile      = "cert.pem"
	keyFile       = "key.pem"
)

// writeFolder creates a folder with all files or none.
func writeFolder(dir string, content map[string][]byte) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
		return err
	}
	temp, err := os.MkdirTemp(filepath.Dir(dir), ".tls-*") // with mode 0700
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	for name, data := range content {
		if err := os.WriteFile(filepath.Join(temp, name), data, 0o600); err != nil {
			return err
		}
	}
	return os.Rename(temp, dir) // fails if the folder is not empty
}

// issue returns the content of the files.
func issue(domain string) (map[string][]byte, error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := time.Now()
	loopback := []net.IP{net.IPv4(127, 0, 0, 1).To4(), net.IPv6loopback}
	ca := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Cove"}, CommonName: "Cove hub of " + domain},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: []string{domain, "localhost"},
		PermittedIPRanges: []*net.IPNet{{IP: loopback[0], Mask: net.CIDRMask(32, 32)}, {IP: loopback[1], Mask: net.CIDRMask(128, 128)}},
	}
	caRaw, err := x509.CreateCertificate(rand.Reader, ca, ca, &caKey.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	if ca, err = x509.ParseCertificate(caRaw); err != nil {
		return nil, err
	}
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{Organization: []string{"Cove"}},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter,
		DNSNames: []string{domain, "*." + domain, "localhost"}, IPAddresses: loopback,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	return map[string][]byte{
		authorityFile: encode("CERTIFICATE", caRaw), certFile: encode("CERTIFICATE", raw), keyFile: encode("PRIVATE KEY", private),
	}, nil
}

func encode(kind string, data []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: data})
}

// serial returns a random number of exactly 127 bits: positive and never short.
func serial() *big.Int {
	b := make([]byte, 16)
	_, _ = rand.Read(b) // never fails
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b)
}
