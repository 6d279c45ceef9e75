//go:build unix

package certificate

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func openAuthority(t *testing.T) *Authority {
	t.Helper()
	a, err := OpenAuthority(filepath.Join(t.TempDir(), "authority.pem"))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAuthorityIsReopened(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "authority.pem")
	a, err := OpenAuthority(path)
	if err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v, want 0600", info.Mode(), err)
	}
	again, err := OpenAuthority(path)
	if err != nil || string(again.PEM()) != string(a.PEM()) {
		t.Error("got another authority after a restart", err)
	}
	block, rest := pem.Decode(a.PEM())
	if block == nil || block.Type != "CERTIFICATE" || len(rest) != 0 {
		t.Error("PEM returns more than a certificate")
	}
	if err := os.Chmod(path, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenAuthority(path); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Error(err)
	}
	if err := os.WriteFile(path, a.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	os.Chmod(path, 0o600)
	if _, err := OpenAuthority(path); err == nil {
		t.Error("an authority without a key was opened")
	}
	if _, err := OpenAuthority(filepath.Join(path, "x")); err == nil {
		t.Error("a file below a file was opened")
	}
}

func TestLeaves(t *testing.T) {
	t.Parallel()
	a := openAuthority(t)
	first, err := a.Certificate("named.test")
	if err != nil {
		t.Fatal(err)
	}
	if again, _ := a.Certificate("named.test"); again != first {
		t.Errorf("issued twice, want %v from the cache", first)
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: "named.test"}); err != nil {
		t.Error(err)
	}
	if _, err := first.Leaf.Verify(x509.VerifyOptions{Roots: a.Pool(), DNSName: "other.test"}); err == nil {
		t.Error("the certificate is valid for another host")
	}
	for i := range maxLeaves + 10 {
		if _, err := a.Certificate(fmt.Sprintf("h%d.test", i)); err != nil {
			t.Fatal(err)
		}
	}
	if len(a.leaves) != maxLeaves || a.order.Len() != maxLeaves || a.leaves["named.test"] != nil {
		t.Errorf("%d leaves, %d in order, want %d without the oldest", len(a.leaves), a.order.Len(), maxLeaves)
	}
}

// TestStrictProgramsAcceptTheChain: newer versions of Python check all requirements of the standard.
func TestStrictProgramsAcceptTheChain(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "openssl")
	a := openAuthority(t)
	cert, err := a.Certificate("named.test")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	ca, chain := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "leaf.pem")
	os.WriteFile(ca, a.PEM(), 0o600)
	os.WriteFile(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}), 0o600)
	out, err := exec.Command("openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname",
		"named.test", "-CAfile", ca, chain).CombinedOutput()
	if err != nil {
		t.Errorf("%s %v", out, err)
	}
}
