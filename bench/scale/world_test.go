//go:build linux

package scale

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/tunnel"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes"
	"github.com/cove-sandbox/cove/test/cluster"
)

const namespace = "cove-sandboxes"

// world is a real API server with etcd, scheduler and controllers, and nodes and Pods that kwok simulates. This process
// serves all Pods.
type world struct {
	b    *testing.B
	k    *cluster.Kubernetes
	api  *http.Client
	pods pods
}

// newWorld starts everything except the hub.
func newWorld(b *testing.B, nodes int) *world {
	kwok := os.Getenv("KWOK")
	if kwok == "" {
		kwok = testenv.NeedFile(b, "../../.tools/bin/kwok")
	}
	w := &world{b: b, k: cluster.StartControlPlane(b)}
	pair, err := tls.X509KeyPair(w.k.Cert, w.k.Key)
	if err != nil {
		b.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(w.k.Authority)
	w.api = &http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 64,
		TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: roots}}}
	b.Cleanup(w.api.CloseIdleConnections)
	w.must(http.MethodPost, "/api/v1/namespaces",
		object{"metadata": object{"name": namespace, "labels": object{"pod-security.kubernetes.io/enforce": "restricted"}}}, nil)
	w.startKwok(kwok)
	began := time.Now()
	w.parallel(nodes, func(i int) {
		room := object{"cpu": "64", "memory": "512Gi", "pods": "250", "ephemeral-storage": "10Ti"}
		w.must(http.MethodPost, "/api/v1/nodes",
			object{"metadata": object{"name": nodeName(i), "annotations": object{"kwok.x-k8s.io/node": "fake"},
				"labels": object{"kubernetes.io/hostname": nodeName(i)}},
				"status": object{"allocatable": room, "capacity": room}}, nil)
	})
	w.wait("the nodes are ready", 10*time.Minute, func() bool {
		var all struct {
			Items []struct {
				Spec   struct{ Taints []any }
				Status struct {
					Conditions []struct{ Type, Status string }
				}
			}
		}
		w.must(http.MethodGet, "/api/v1/nodes", nil, &all)
		ready := 0
		for _, n := range all.Items {
			for _, c := range n.Status.Conditions {
				if c.Type == "Ready" && c.Status == "True" && len(n.Spec.Taints) == 0 {
					ready++
				}
			}
		}
		return ready == nodes
	})
	fmt.Printf("%d nodes ready after %v\n", nodes, time.Since(began).Round(time.Second))
	w.pods.serve(w)
	return w
}

func nodeName(i int) string { return fmt.Sprintf("fake-%d", i) }

type object = map[string]any

func (w *world) startKwok(program string) {
	config := filepath.Join(w.b.TempDir(), "kwok.yaml")
	text := "kind: KwokConfiguration\napiVersion: config.kwok.x-k8s.io/v1alpha1\noptions: " +
		"{podPlayStageParallelism: 16, nodePlayStageParallelism: 8, nodeLeaseParallelism: 4}\n"
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		w.b.Fatal(err)
	}
	log, err := os.Create(filepath.Join(w.k.Dir, "log", "kwok"))
	if err != nil {
		w.b.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(program, "--config", config, "--kubeconfig", w.k.Kubeconfig, "--manage-all-nodes=false",
		"--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
		"--node-lease-duration-seconds=600", "--cidr=198.19.0.1/16", "--node-ip=198.19.255.254", "--server-address=127.0.0.1:0")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		w.b.Fatal(err)
	}
	w.b.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
}

// do sends a request to the API server as administrator.
func (w *world) do(method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(data)
	}
	req, err := http.NewRequest(method, w.k.Server+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := w.api.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= 300 {
		err = fmt.Errorf("%s %s: %s: %.300s", method, path, resp.Status, data)
	}
	if err != nil || out == nil {
		return err
	}
	if raw, ok := out.(*[]byte); ok {
		*raw = data
		return nil
	}
	return json.Unmarshal(data, out)
}

func (w *world) must(method, path string, in, out any) {
	w.b.Helper()
	if err := w.do(method, path, in, out); err != nil {
		w.b.Fatal(err)
	}
}

// parallel calls f for 0 to n-1 concurrently.
func (w *world) parallel(n int, f func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range 48 {
		wg.Go(func() {
			for i := range next {
				f(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}

// wait polls until a condition is true.
func (w *world) wait(what string, limit time.Duration, ok func() bool) {
	w.b.Helper()
	if !testenv.Within(limit, ok) {
		w.b.Fatalf("%s: timeout after %v", what, limit)
	}
}

// pods serves all Pods: each has a tunnel with the key of its Secret, and all tunnels share one server.
type pods struct {
	w                *world
	mu               sync.Mutex
	hub              string                       // pin of the hub's key
	keys             map[string]map[string][]byte // of Pods whose Secrets are known
	news             *sync.Cond
	names, addresses map[string]string // of Pods: names by address and addresses by name
	serving          map[string]*feed  // by name
	inside           *feed
}

// feed is a listener whose connections are passed to it.
type feed struct {
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newFeed() *feed { return &feed{conns: make(chan net.Conn), done: make(chan struct{})} }

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}
func (f *feed) Close() error   { f.once.Do(func() { close(f.done) }); return nil }
func (f *feed) Addr() net.Addr { return &net.TCPAddr{} }
func (f *feed) give(c net.Conn) {
	select {
	case f.conns <- c:
	case <-f.done:
		c.Close()
	}
}

func (p *pods) serve(w *world) {
	p.w, p.names, p.addresses, p.serving, p.inside, p.news, p.keys = w, map[string]string{}, map[string]string{},
		map[string]*feed{}, newFeed(), sync.NewCond(&p.mu), map[string]map[string][]byte{}
	server := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		rw.Header().Set("Content-Type", "application/json")
		io.WriteString(rw, `{"ready":true,"busy":false}`)
	})}
	go server.Serve(p.inside)
	l, err := w.k.ListenAsPods(kubernetes.Port)
	if err != nil {
		w.b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.b.Cleanup(func() {
		cancel()
		l.Close()
		server.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, f := range p.serving {
			f.Close()
		}
	})
	go p.watch(ctx)
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				go p.accept(c)
			}
		}
	}()
}

// watch watches the addresses of Pods.
func (p *pods) watch(ctx context.Context) {
	for version := "0"; ctx.Err() == nil; {
		req, _ := http.NewRequestWithContext(ctx, http.MethodGet, p.w.k.Server+"/api/v1/namespaces/"+namespace+
			"/pods?watch=true&allowWatchBookmarks=true&resourceVersion="+version, nil)
		resp, err := p.w.api.Do(req)
		if err != nil {
			continue
		}
		events := json.NewDecoder(resp.Body)
		for {
			var e struct {
				Type   string
				Object struct {
					Metadata struct{ Name, ResourceVersion string }
					Status   struct{ PodIP string }
				}
			}
			if events.Decode(&e) != nil {
				break
			}
			if e.Type == "ERROR" { // the API server no longer has events after that version: start over
				p.mu.Lock()
				clear(p.names)
				clear(p.addresses)
				p.mu.Unlock()
				version = "0"
				break
			}
			version = e.Object.Metadata.ResourceVersion
			p.mu.Lock()
			if ip := e.Object.Status.PodIP; ip != "" && e.Type != "BOOKMARK" {
				p.move(e.Object.Metadata.Name, ip, e.Type == "DELETED")
			}
			p.news.Broadcast()
			p.mu.Unlock()
		}
		resp.Body.Close()
	}
}

// move stores the address of a Pod. Kwok sometimes assigns a second address and revokes the first.
func (p *pods) move(name, ip string, gone bool) {
	if old := p.addresses[name]; p.names[old] == name { // otherwise the address now belongs to another Pod
		delete(p.names, old)
	}
	delete(p.addresses, name)
	if !gone {
		p.names[ip], p.addresses[name] = name, ip
	}
}

// hangUp closes the connections of a dead hub, because the connections of all Pods are open files of this process.
func (p *pods) hangUp() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range p.serving {
		f.Close()
	}
	clear(p.serving)
}

// known sets the keys of Pods to those of another Pod.
func (p *pods) known(names []string, other string) {
	own, _, err := p.identity(other)
	if err != nil {
		p.w.b.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range names {
		p.keys[name] = own
	}
}

// count returns the number of Pods with an address.
func (p *pods) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.addresses)
}

// accept passes a connection to the tunnel of its Pod.
func (p *pods) accept(c net.Conn) {
	ip := c.LocalAddr().(*net.TCPAddr).IP.String()
	p.mu.Lock()
	for p.names[ip] == "" { // the hub may know the address before this process does
		p.news.Wait()
	}
	name := p.names[ip]
	f := p.serving[name]
	if f == nil {
		f = newFeed()
		p.serving[name] = f
		go p.run(name, f)
	}
	p.mu.Unlock()
	f.give(c)
}

// identity returns the keys of a Pod, and the pin of the hub. Like a kubelet, it reads a Secret once.
func (p *pods) identity(name string) (own map[string][]byte, pin string, err error) {
	p.mu.Lock()
	own, pin = p.keys[name], p.hub
	p.mu.Unlock()
	if own == nil {
		var s struct{ Data map[string][]byte }
		if err = p.w.do(http.MethodGet, "/api/v1/namespaces/"+namespace+"/secrets/"+name, nil, &s); err != nil {
			return nil, "", err
		}
		own = map[string][]byte{"tls.crt": s.Data["tls.crt"], "tls.key": s.Data["tls.key"]}
	}
	if pin == "" {
		var s struct{ Data map[string][]byte }
		if err = p.w.do(http.MethodGet, "/api/v1/namespaces/"+namespace+"/secrets/cove-hub-cove", nil, &s); err == nil {
			pin, err = tunnel.Pin(s.Data["tls.crt"])
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hub, p.keys[name] = pin, own
	return own, pin, err
}

// run simulates the first process of a Pod.
func (p *pods) run(name string, f *feed) {
	own, pin, err := p.identity(name)
	if err != nil {
		f.Close()
		return
	}
	s, err := tunnel.NewServer(tunnel.ServerConfig{Cert: own["tls.crt"], Key: own["tls.key"], Hub: pin,
		Stats: func() []byte { return []byte("{}") },
		Dial: func(context.Context, int) (net.Conn, error) {
			here, there := net.Pipe()
			go p.inside.give(there)
			return here, nil
		}})
	if err != nil {
		f.Close()
		return
	}
	s.Serve(f)
	s.Close()
}
