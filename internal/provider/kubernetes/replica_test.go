//go:build linux

package kubernetes_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// replicas are two hubs with one state folder.
type replicas struct {
	t          *testing.T
	s          *apiServer
	bin, state string
	key        string
	hubs       [2]*realHub
}

func (r *replicas) start(i int) {
	r.t.Helper()
	h := launchHub(r.t, r.s, r.bin, r.state, fmt.Sprintf("hub-%d.sock", i), "--tenants", "--replica-address", "127.0.0.1:0")
	r.key = adminKey(r.t, r.state)
	r.hubs[i] = h
	h.connect(r.key)
}

// try runs a command through a replica, on a new connection.
func (r *replicas) try(i int, name, command string) (string, error) {
	c, err := client.New(client.Config{URL: "unix:" + r.hubs[i].socket, Key: r.key})
	if err != nil {
		return "", err
	}
	defer c.Close()
	g := c.Guest(name)
	defer g.Close()
	var out bytes.Buffer
	_, err = g.Exec(r.t.Context(), command, client.ExecOptions{Stdout: &out, Stderr: &out})
	return out.String(), err
}

// testReplicas: two hubs behind one address are killed in turn under load, and no request fails but those that
// were in progress at the one that was killed.
func testReplicas(t *testing.T) {
	bin := t.TempDir()
	testenv.Build(t, map[string]string{bin + "/cove": "../../../cmd/cove", bin + "/aio": "../../../cmd/aio"})
	s := newAPIServer(t, map[string]string{"aio": bin + "/aio", "cove-container": programs["cove-container"]})
	s.kubelet.installer(t)
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	r := &replicas{t: t, s: s, bin: bin, state: state}
	r.start(0)
	r.start(1)
	// Both replicas have every sandbox, and neither admits a client without a key, including the owner of its socket.
	if _, err := r.hubs[1].Create(t.Context(), client.CreateOptions{Name: "a", Env: map[string]string{"GREETING": "hello"}}); err != nil {
		t.Fatal(err)
	}
	for _, h := range r.hubs {
		h.wantOutput("a", "echo $GREETING; id -u", "hello\n1000\n")
	}
	nobody, err := client.New(client.Config{URL: "unix:" + r.hubs[1].socket})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	if _, err := nobody.Create(t.Context(), client.CreateOptions{Name: "b"}); err == nil {
		t.Error("a caller without a key has created a sandbox through the other replica")
	}

	var (
		mu   sync.RWMutex // of the replicas
		dead atomic.Int64 // the replica that is down, or -1
	)
	dead.Store(-1)
	l := startLoad(t, func(n int) (string, error) {
		i := n % 2
		if int64(i) == dead.Load() { // a Service sends nothing there
			i = 1 - i
		}
		mu.RLock()
		defer mu.RUnlock()
		return r.try(i, "a", "echo $GREETING")
	})
	l.more("with two replicas")
	for turn := range 2 { // first the one that serves, then the one that serves by then
		dead.Store(int64(turn))
		l.kill(r.hubs[turn].kill)
		l.more("with one replica")
		mu.Lock()
		r.start(turn)
		mu.Unlock()
		dead.Store(-1)
		l.more("with two replicas again")
	}
	l.finish()
	if err := r.hubs[0].Delete(t.Context(), "a"); err != nil {
		t.Error(err)
	}
	if _, err := r.hubs[1].Get(t.Context(), "a"); err == nil {
		t.Error("the other replica still has what was deleted")
	}
}

// load sends requests from several clients at once while replicas are killed. A killed replica loses
// its connections and those queued at its listener. No live hub returns an error.
type load struct {
	t                  *testing.T
	done, cut, refused atomic.Int64
	kills              atomic.Int64 // odd while a replica is being killed
	stop               chan struct{}
	work               sync.WaitGroup
}

// loadWorkers is how many requests are in progress at the same time.
const loadWorkers = 4

// startLoad sends requests, each on a separate connection, which respond with "hello".
func startLoad(t *testing.T, try func(n int) (string, error)) *load {
	l := &load{t: t, stop: make(chan struct{})}
	for w := range loadWorkers {
		l.work.Go(func() {
			for n := w; ; n++ {
				select {
				case <-l.stop:
					return
				default:
				}
				before := l.kills.Load()
				got, err := try(n)
				_, answered := errors.AsType[*client.Error](err)
				switch {
				case err == nil && got == "hello\n":
					l.done.Add(1)
				case client.NotFound(err) && (before%2 == 1 || before != l.kills.Load()):
					l.cut.Add(1) // its replica was killed before the sandbox received it
				case err == nil || answered:
					t.Errorf("got %q, %v, want hello, or a lost connection", got, err)
				case errors.Is(err, syscall.ECONNREFUSED): // no replica got the request: the Service still sends to the killed one
					l.refused.Add(1)
				case before%2 == 1 || before != l.kills.Load():
					l.cut.Add(1) // in flight at a killed replica, or waiting for it to accept
				default:
					t.Errorf("got %q, %v, though nothing was killed", got, err)
				}
			}
		})
	}
	return l
}

// kill calls kill, which ends a replica and returns when it is dead. Requests in progress may fail.
func (l *load) kill(kill func()) {
	l.kills.Add(1)
	kill()
	l.kills.Add(1)
}

// more waits until more requests have succeeded.
func (l *load) more(what string) {
	l.t.Helper()
	want := l.done.Load() + 3*loadWorkers
	testenv.Poll(l.t, "requests succeed "+what, func() bool { return l.done.Load() >= want })
}

// finish ends the load.
func (l *load) finish() {
	l.t.Helper()
	close(l.stop)
	l.work.Wait()
	l.t.Logf("%d requests, of which %d were cut; %d connections were refused", l.done.Load(), l.cut.Load(), l.refused.Load())
}
