package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// issueAll writes the certificates of a cluster, and the kubeconfig files of its parts.
func (k *Kubernetes) issueAll(box, service string) error {
	if err := os.RemoveAll(filepath.Join(k.Dir, "keys")); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(k.Dir, "keys"), 0o700); err != nil {
		return err
	}
	i, err := k.newIssuer()
	if err != nil {
		return err
	}
	addresses := []net.IP{net.ParseIP(box), net.ParseIP(service), net.IPv4(127, 0, 0, 1)}
	_, _, err = i.issue("apiserver", pkix.Name{CommonName: "apiserver"}, addresses...)
	for name, subject := range map[string]pkix.Name{
		"admin":       {CommonName: "admin", Organization: []string{"system:masters"}},
		"controllers": {CommonName: "system:kube-controller-manager"},
		"scheduler":   {CommonName: "system:kube-scheduler"},
		"proxy":       {CommonName: "system:kube-proxy"},
		"kubelet":     {CommonName: "system:node:node", Organization: []string{"system:nodes"}},
	} {
		cert, key, failed := i.issue(name, subject, addresses...)
		config, more := json.Marshal(map[string]any{ // which YAML includes
			"current-context": "it",
			"contexts":        []any{map[string]any{"name": "it", "context": map[string]any{"cluster": "it", "user": "it"}}},
			"clusters": []any{map[string]any{"name": "it", "cluster": map[string]any{"server": k.Server,
				"certificate-authority-data": i.pem}}},
			"users": []any{map[string]any{"name": "it", "user": map[string]any{"client-certificate-data": cert, "client-key-data": key}}},
		})
		err = errors.Join(err, failed, more, i.write(name+".kubeconfig", config))
		if name == "admin" {
			k.Authority, k.Cert, k.Key = i.pem, cert, key
		}
	}
	accounts, failed := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err := errors.Join(err, failed); err != nil {
		return err
	}
	public, err := x509.MarshalPKIXPublicKey(&accounts.PublicKey)
	if err != nil {
		return err
	}
	_, err = i.writeKey("accounts", accounts)
	return errors.Join(err, i.write("accounts.pub", pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public})))
}

// issuer is the certificate authority of a cluster.
type issuer struct {
	dir  string
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  []byte
}

func (k *Kubernetes) newIssuer() (*issuer, error) {
	i := &issuer{dir: filepath.Join(k.Dir, "keys")}
	var err error
	if i.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	self := template(pkix.Name{CommonName: "test cluster"})
	self.IsCA, self.BasicConstraintsValid, self.KeyUsage = true, true, x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, self, self, &i.key.PublicKey, i.key)
	if err != nil {
		return nil, err
	}
	if i.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	i.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	_, err = i.writeKey("ca", i.key)
	return i, errors.Join(err, i.write("ca.crt", i.pem))
}

func template(subject pkix.Name) *x509.Certificate {
	serial, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100)) // never fails
	now := time.Now()
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: now.Add(-time.Hour), NotAfter: now.Add(48 * time.Hour)}
}

// issue writes a key and its certificate, for clients and servers.
func (i *issuer) issue(name string, subject pkix.Name, addresses ...net.IP) (cert, key []byte, err error) {
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	c := template(subject)
	c.KeyUsage, c.ExtKeyUsage = x509.KeyUsageDigitalSignature, []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	c.IPAddresses, c.DNSNames = addresses, []string{"localhost", "node", "kubernetes.default.svc"}
	der, err := x509.CreateCertificate(rand.Reader, c, i.cert, &pair.PublicKey, i.key)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key, err = i.writeKey(name, pair)
	return cert, key, errors.Join(err, i.write(name+".crt", cert))
}

func (i *issuer) writeKey(name string, key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	return data, i.write(name+".key", data)
}

func (i *issuer) write(name string, data []byte) error {
	return os.WriteFile(filepath.Join(i.dir, name), data, 0o600)
}
