package cluster

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// Store is an S3-compatible store.
type Store struct {
	Endpoint, Bucket     string
	AccessKey, SecretKey string
	Dir                  string // holds the bucket as a folder, with its objects as files
}

// StartStore starts a store for a test. Tools is the folder of scripts/deps.
func StartStore(t testing.TB, tools string) *Store {
	t.Helper()
	testenv.Engine(t)
	program := testenv.NeedFile(t, filepath.Join(tools, "bin/versitygw"))
	address := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	s := &Store{Endpoint: "http://" + address, Bucket: "bucket", AccessKey: "access", SecretKey: "the secret of the store", Dir: t.TempDir()}
	if err := os.Mkdir(filepath.Join(s.Dir, s.Bucket), 0o700); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--port", address, "--quiet", "posix", s.Dir)
	cmd.Env = []string{"ROOT_ACCESS_KEY=" + s.AccessKey, "ROOT_SECRET_KEY=" + s.SecretKey, "PATH=/usr/bin:/bin"}
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread() // Pdeathsig applies to the thread
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(fmt.Errorf("start the store: %w", err))
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
	testenv.Poll(t, "the store answers", func() bool {
		c, err := net.Dial("tcp", address)
		if err != nil {
			return false
		}
		c.Close()
		return true
	})
	return s
}

// Proxy forwards requests to the store, unless fault returns a status to answer with.
func (s *Store) Proxy(fault func(*http.Request) int) http.Handler {
	target, err := url.Parse(s.Endpoint)
	if err != nil {
		panic(err)
	}
	forward := &httputil.ReverseProxy{Transport: &http.Transport{DisableKeepAlives: true},
		ErrorLog: log.New(io.Discard, "", 0), Rewrite: func(r *httputil.ProxyRequest) {
			r.Out.URL.Scheme, r.Out.URL.Host = target.Scheme, target.Host // but not Host, which is signed
		}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if code := fault(r); code != 0 {
			w.Header().Set("Location", s.Endpoint)
			w.WriteHeader(code)
			return
		}
		forward.ServeHTTP(w, r)
	})
}
