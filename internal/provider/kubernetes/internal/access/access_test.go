package access

import (
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func TestKubeconfig(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ca.pem"), []byte("authority"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := func(cluster, user string) string {
		return fmt.Sprintf("current-context: one\ncontexts:\n- name: one\n  context: {cluster: c, user: u, "+
			"namespace: boxes}\nclusters:\n- name: c\n  cluster: {%s}\nusers:\n- name: u\n  user: {%s}\n", cluster, user)
	}
	inline := base64.StdEncoding.EncodeToString([]byte("text"))
	a, err := parseKubeconfig([]byte(config("server: https://api:6443, certificate-authority: ca.pem",
		"token: abc, client-certificate-data: "+inline)), dir, "")
	if err != nil || a.Server != "https://api:6443" || string(a.Authority) != "authority" || a.Token != "abc" ||
		string(a.Cert) != "text" || a.Namespace != "boxes" {
		t.Errorf("got %+v, %v", a, err)
	}
	if a, err := parseKubeconfig([]byte(config("server: https://api", "tokenFile: token")), dir, ""); err != nil ||
		a.TokenFile != filepath.Join(dir, "token") {
		t.Errorf("got %+v, %v, want the file in the folder of the kubeconfig", a, err)
	}
	for text, want := range map[string]string{
		config("server: https://api, insecure-skip-tls-verify: true", "token: x"):  "certificate-authority",
		config("server: https://api, proxy-url: http://p", "token: x"):             "proxy-url",
		config("server: https://api", "exec: {command: aws}"):                      "kubectl create token",
		config("server: https://api", "username: x"):                               "kubectl create token",
		config("server: https://api, certificate-authority: none.pem", "token: x"): "none.pem",
		"current-context: other\n":                                                 "no such context",
		"contexts: [\n":                                                            "yaml",
	} {
		if _, err := parseKubeconfig([]byte(text), dir, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
	for _, bad := range []Access{{Server: "ftp://x"}, {Server: ""}, {Server: "http://example.com", Token: "x"},
		{Server: "https://x", Authority: []byte("no PEM")}, {Server: "https://x", Cert: []byte("x")}} {
		if _, err := bad.Open(); err == nil {
			t.Errorf("%+v: accepted", bad)
		}
	}
}

func TestInCluster(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if _, err := inCluster("10.0.0.1", "443", dir); err == nil || !strings.Contains(err.Error(), "service account") {
		t.Errorf("got %v, want an error about the service account", err)
	}
	for name, text := range map[string]string{"token": "first\n", "ca.crt": "authority", "namespace": "boxes\n"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, err := inCluster("fd00::1", "443", dir)
	if err != nil || a.Server != "https://[fd00::1]:443" || a.Namespace != "boxes" {
		t.Fatalf("got %+v, %v", a, err)
	}
	// The token is replaced from time to time.
	file := &tokenFile{path: a.TokenFile}
	if got, err := file.read(); got != "first" {
		t.Errorf("got %q, %v", got, err)
	}
	if err := os.WriteFile(a.TokenFile, []byte("second"), 0o600); err != nil {
		t.Fatal(err)
	}
	file.until = time.Time{}
	if got, err := file.read(); got != "second" {
		t.Errorf("got %q, %v, want the new one", got, err)
	}
}
