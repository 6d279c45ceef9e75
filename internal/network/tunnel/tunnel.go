// Package tunnel connects the hub with a sandbox that it reaches over a network: the hub
// dials ports inside, and accepts the connections that programs inside make.
//
// Both ends authenticate over TLS 1.3 with keys whose pins the other end knows: only the hub
// can connect, even if the sandbox's port is reachable from everywhere, and no other process can
// impersonate the sandbox. The hub opens all connections, so a sandbox needs no network.
//
// A connection begins with a request of three bytes, a verb and a port. The response is one
// byte and, after a failure, the reason. Then the connection carries bytes. The hub may open a
// connection in advance and send its request later. Copies of disks are sent in frames, so that
// the end of a copy differs from the end of a connection.
package tunnel

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// The verbs of requests.
const (
	verbDial   = 'd' // connect to a port inside; 0 is the server
	verbAccept = 'a' // accept the next outgoing connection
	verbStats  = 's' // send the resource usage
	verbWait   = 'w' // wait for another request on this connection
	verbSave   = 'c' // send a copy of the disk
	verbFill   = 'f' // receive the copy that the disk is restored from
	verbHold   = 'h' // suspend all programs
)

// The first byte of a response.
const (
	granted = 0
	refused = 1 // followed by the reason
)

const (
	protocol = "cove-tunnel/1"
	// maxReason bounds a reason, which the sandbox chooses.
	maxReason = 512
	// handshakeTime bounds everything up to the response, except the wait of verbAccept.
	handshakeTime = 10 * time.Second
)

// NewIdentity returns a new key with its certificate, in PEM. Certificates only contain keys: with
// a pin, neither an authority nor a validity period is checked.
func NewIdentity() (cert, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<36, 0)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		return nil, nil, err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, err
	}
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return cert, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw}), nil
}

// Pin identifies the key of a certificate in PEM.
func Pin(cert []byte) (string, error) {
	block, _ := pem.Decode(cert)
	if block == nil {
		return "", errors.New("no certificate in PEM")
	}
	parsed, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", err
	}
	return pinOf(parsed), nil
}

func pinOf(cert *x509.Certificate) string {
	sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Configure returns the TLS configuration of an end with an identity. It accepts only the
// peer whose key has the pin.
func Configure(cert, key []byte, peer string) (*tls.Config, error) {
	if len(peer) != 2*sha256.Size {
		return nil, fmt.Errorf("invalid pin %.80q", peer)
	}
	own, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{own}, NextProtos: []string{protocol},
		ClientAuth: tls.RequireAnyClientCert, SessionTicketsDisabled: true,
		InsecureSkipVerify: true, // the pin is verified instead
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 || subtle.ConstantTimeCompare([]byte(pinOf(state.PeerCertificates[0])), []byte(peer)) != 1 {
				return errors.New("the peer has another key")
			}
			return nil
		},
	}, nil
}
