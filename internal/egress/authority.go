package egress

import (
	"bytes"
	"container/list"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/atomicfile"
)

const (
	authorityLife  = 10 * 365 * 24 * time.Hour
	authorityRenew = 30 * 24 * time.Hour
	leafLife       = 7 * 24 * time.Hour
	leafRenew      = 24 * time.Hour
	skew           = time.Hour // of clocks in sandboxes
	maxLeaves      = 1024
)

// Authority signs the certificates that sandboxes see in place of those of the
// hosts that credentials are for. One serves all sandboxes of a hub.
type Authority struct {
	cert *x509.Certificate
	sign *ecdsa.PrivateKey
	key  *ecdsa.PrivateKey // of all leaves
	pem  []byte

	mu     sync.Mutex
	leaves map[string]*list.Element
	order  list.List // the one used last first
}

type leaf struct {
	host string
	cert *tls.Certificate
}

// OpenAuthority reads an authority from a file, which holds its key too, or makes
// one there. One that is about to expire is replaced.
func OpenAuthority(path string) (*Authority, error) {
	data, err := readPrivate(path)
	if errors.Is(err, fs.ErrNotExist) {
		return makeAuthority(path)
	}
	if err != nil {
		return nil, fmt.Errorf("open the authority for brokered hosts: %w", err)
	}
	a, err := parseAuthority(data)
	if err != nil {
		return nil, fmt.Errorf("open the authority for brokered hosts: %s: %w; restore the file, or remove it and start all sandboxes that use it anew", path, err)
	}
	if time.Until(a.cert.NotAfter) < authorityRenew {
		return makeAuthority(path)
	}
	return a, nil
}

// readPrivate reads a small file that nobody else may read.
func readPrivate(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular() || info.Size() > 64<<10:
		return nil, fmt.Errorf("%s is no file of ours", path)
	case info.Mode().Perm()&0o077 != 0:
		return nil, fmt.Errorf("%s can be read by others; run chmod 600 on it, or remove it if they may have read it", path)
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
		return nil, errors.New("it holds no authority")
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	return &Authority{
		cert: pair.Leaf, sign: sign, key: leafKey, leaves: map[string]*list.Element{},
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw}),
	}, nil
}

func makeAuthority(path string) (*Authority, error) {
	data, err := newAuthority()
	if err == nil {
		err = atomicfile.Replace(path, atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
			_, err := f.Write(data)
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("make an authority for brokered hosts: %w", err)
	}
	return parseAuthority(data)
}

func newAuthority() ([]byte, error) {
	sign, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	number, err := serial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	ca := &x509.Certificate{
		SerialNumber: number,
		// The name is its own, so that two hubs' authorities can be told apart.
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
	var out bytes.Buffer
	pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert})
	pem.Encode(&out, &pem.Block{Type: "PRIVATE KEY", Bytes: private})
	return out.Bytes(), nil
}

// serial is a random number of 127 bits with the highest set: positive, and
// never short.
func serial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, err
	}
	return n.SetBit(n, 126, 1), nil
}

// PEM returns the certificate that sandboxes must trust. The key is not in it.
func (a *Authority) PEM() []byte { return bytes.Clone(a.pem) }

// leaf returns a certificate for a host, which is a clean name.
func (a *Authority) leaf(host string) (*tls.Certificate, error) {
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
		return nil, fmt.Errorf("make a certificate for %s: %w", host, err)
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
	number, err := serial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	raw, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: number,
		Subject:      pkix.Name{Organization: []string{"Cove brokered host"}},
		DNSNames:     []string{host},
		NotBefore:    now.Add(-skew), NotAfter: now.Add(leafLife),
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
	return &tls.Certificate{Certificate: [][]byte{raw}, PrivateKey: a.key, Leaf: parsed}, nil
}

// config is how the proxy stands in for a host. A client that names another host
// than the one it had itself connected to is turned away.
func (a *Authority) config(host string) (*tls.Config, error) {
	cert, err := a.leaf(host)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetCertificate: func(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
			if name, err := CleanName(hello.ServerName); hello.ServerName != "" && (err != nil || name != host) {
				return nil, deny("the connection is to %s, but asks for the certificate of %.80q", host, hello.ServerName)
			}
			return cert, nil
		},
		// Each connection is checked on its own.
		SessionTicketsDisabled: true,
	}, nil
}
