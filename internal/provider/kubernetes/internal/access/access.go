// Package access reads the address and credentials of an API server from the service account of a Pod or a
// kubeconfig file. It connects to the server and, through it, to ports of Pods.
//
// It owns the credentials and never sends them to another host or unencrypted.
package access

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v3"
)

// Access is the address of an API server, with credentials.
type Access struct {
	Server    string
	Authority []byte // certificates in PEM; default: those of the system
	// ServerName is the name in the server's certificate if it differs from the host of Server.
	ServerName string
	Token      string
	// TokenFile holds a token that is replaced from time to time.
	TokenFile string
	Cert, Key []byte // in PEM
	Namespace string // of the context or Pod
}

// serviceAccount is the folder of a Pod with its credentials.
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

// InCluster returns the access of the current Pod. Host and port are the values of the variables
// KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT.
func InCluster(host, port string) (Access, error) { return inCluster(host, port, serviceAccount) }

func inCluster(host, port, dir string) (Access, error) {
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	a := Access{Server: "https://" + host + ":" + port, TokenFile: filepath.Join(dir, "token")}
	var err error
	if a.Authority, err = os.ReadFile(filepath.Join(dir, "ca.crt")); err != nil {
		return Access{}, fmt.Errorf("this Pod has no service account: %w; set automountServiceAccountToken, or configure a kubeconfig", err)
	}
	ns, err := os.ReadFile(filepath.Join(dir, "namespace"))
	if err != nil {
		return Access{}, err
	}
	a.Namespace = strings.TrimSpace(string(ns))
	return a, nil
}

// kubeconfig is the file of kubectl.
type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string `yaml:"name"`
		Context struct {
			Cluster   string `yaml:"cluster"`
			User      string `yaml:"user"`
			Namespace string `yaml:"namespace"`
		} `yaml:"context"`
	} `yaml:"contexts"`
	Clusters []struct {
		Name    string `yaml:"name"`
		Cluster struct {
			Server   string `yaml:"server"`
			CA       string `yaml:"certificate-authority"`
			CAData   string `yaml:"certificate-authority-data"`
			Name     string `yaml:"tls-server-name"`
			Insecure bool   `yaml:"insecure-skip-tls-verify"`
			Proxy    string `yaml:"proxy-url"`
		} `yaml:"cluster"`
	} `yaml:"clusters"`
	Users []struct {
		Name string `yaml:"name"`
		User struct {
			Token     string `yaml:"token"`
			TokenFile string `yaml:"tokenFile"`
			Cert      string `yaml:"client-certificate"`
			CertData  string `yaml:"client-certificate-data"`
			Key       string `yaml:"client-key"`
			KeyData   string `yaml:"client-key-data"`
			Username  string `yaml:"username"`
			Exec      any    `yaml:"exec"`
			Provider  any    `yaml:"auth-provider"`
		} `yaml:"user"`
	} `yaml:"users"`
}

// ReadKubeconfig returns the access of a context of a kubeconfig file; empty is its current context.
func ReadKubeconfig(path, context string) (Access, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Access{}, fmt.Errorf("read kubeconfig: %w", err)
	}
	a, err := parseKubeconfig(data, filepath.Dir(path), context)
	if err != nil {
		return Access{}, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return a, nil
}

func parseKubeconfig(data []byte, dir, context string) (Access, error) {
	var file kubeconfig
	if err := yaml.Unmarshal(data, &file); err != nil {
		return Access{}, err
	}
	context = cmp.Or(context, file.Current)
	for _, c := range file.Contexts {
		if c.Name != context {
			continue
		}
		a := Access{Namespace: c.Context.Namespace}
		if err := errors.Join(file.readCluster(&a, c.Context.Cluster, dir), file.readUser(&a, c.Context.User, dir)); err != nil {
			return Access{}, err
		}
		return a, nil
	}
	return Access{}, fmt.Errorf("no such context: %q", context)
}

func (f *kubeconfig) readCluster(a *Access, name, dir string) (err error) {
	for _, c := range f.Clusters {
		if c.Name != name {
			continue
		}
		switch {
		case c.Cluster.Insecure:
			return fmt.Errorf("cluster %q disables certificate verification, which is not supported; set certificate-authority instead", name)
		case c.Cluster.Proxy != "":
			return fmt.Errorf("cluster %q has a proxy-url, which is not supported", name)
		}
		a.Server, a.ServerName = c.Cluster.Server, c.Cluster.Name
		a.Authority, err = inlineOrFile(c.Cluster.CAData, c.Cluster.CA, dir)
		return err
	}
	return fmt.Errorf("no such cluster: %q", name)
}

func (f *kubeconfig) readUser(a *Access, name, dir string) (err error) {
	for _, u := range f.Users {
		if u.Name != name {
			continue
		}
		if u.User.Exec != nil || u.User.Provider != nil || u.User.Username != "" {
			return fmt.Errorf("user %q uses exec, an auth provider or a password, which is not supported; "+
				"use the token of a service account (kubectl create token) or a client certificate", name)
		}
		a.Token = u.User.Token
		if u.User.TokenFile != "" {
			a.TokenFile = below(dir, u.User.TokenFile)
		}
		a.Cert, err = inlineOrFile(u.User.CertData, u.User.Cert, dir)
		if err != nil {
			return err
		}
		a.Key, err = inlineOrFile(u.User.KeyData, u.User.Key, dir)
		return err
	}
	return fmt.Errorf("no such user: %q", name)
}

func inlineOrFile(data, path, dir string) ([]byte, error) {
	switch {
	case data != "":
		return base64.StdEncoding.DecodeString(data)
	case path != "":
		return os.ReadFile(below(dir, path))
	}
	return nil, nil
}

func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// Conn is a client of an API server.
type Conn struct {
	Server  *url.URL
	HTTP    *http.Client
	upgrade *http.Client // for WebSockets, which require HTTP/1.1
	token   func() (string, error)
}

// Authorize adds the credentials to a request.
func (c *Conn) Authorize(h http.Header) error {
	if c.token == nil {
		return nil
	}
	token, err := c.token()
	if err != nil {
		return fmt.Errorf("read the token for the API server: %w", err)
	}
	h.Set("Authorization", "Bearer "+token)
	return nil
}

// Open returns a client. It sends no request.
func (a Access) Open() (*Conn, error) {
	u, err := url.Parse(a.Server)
	if err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
		return nil, fmt.Errorf("invalid address of the API server: %q", a.Server)
	}
	local := u.Hostname() == "localhost" || net.ParseIP(u.Hostname()).IsLoopback()
	if u.Scheme == "http" && (a.Token != "" || a.TokenFile != "") && !local {
		return nil, fmt.Errorf("the token would be sent to API server %q unencrypted; use https", a.Server)
	}
	settings := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: a.ServerName}
	if len(a.Authority) > 0 {
		settings.RootCAs = x509.NewCertPool()
		if !settings.RootCAs.AppendCertsFromPEM(a.Authority) {
			return nil, errors.New("the certificate authority of the API server is not in PEM")
		}
	}
	if len(a.Cert) > 0 {
		pair, err := tls.X509KeyPair(a.Cert, a.Key)
		if err != nil {
			return nil, fmt.Errorf("client certificate: %w", err)
		}
		settings.Certificates = []tls.Certificate{pair}
	}
	tr := &http.Transport{
		TLSClientConfig: settings, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 32,
		IdleConnTimeout: 90 * time.Second, TLSHandshakeTimeout: 10 * time.Second,
		// Pings detect a dead connection, which would otherwise block a watch.
		HTTP2: &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	// A redirect would send the credentials to another host.
	noRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	one := tr.Clone()
	one.ForceAttemptHTTP2, one.HTTP2, one.TLSNextProto, one.DisableKeepAlives = false, nil,
		map[string]func(string, *tls.Conn) http.RoundTripper{}, true
	one.TLSClientConfig.NextProtos = []string{"http/1.1"}
	c := &Conn{Server: u, HTTP: &http.Client{Transport: tr, CheckRedirect: noRedirect},
		upgrade: &http.Client{Transport: one, CheckRedirect: noRedirect}}
	switch {
	case a.TokenFile != "":
		c.token = (&tokenFile{path: a.TokenFile}).read
	case a.Token != "":
		c.token = func() (string, error) { return a.Token, nil }
	}
	return c, nil
}

// tokenTTL is how long a token is used before its file is read again.
const tokenTTL = time.Minute

// tokenFile is a token that is replaced from time to time.
type tokenFile struct {
	path string

	mu    sync.Mutex
	token string
	until time.Time
}

func (t *tokenFile) read() (string, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if time.Now().Before(t.until) {
		return t.token, nil
	}
	data, err := os.ReadFile(t.path)
	if err != nil {
		return "", err
	}
	t.token, t.until = strings.TrimSpace(string(data)), time.Now().Add(tokenTTL)
	return t.token, nil
}
