package cove

import (
	"bytes"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// standard are the default settings of a hub.
func standard(t *testing.T) config.Cove {
	t.Helper()
	var cfg config.Cove
	if _, err := config.Load(&cfg, config.Source{Environ: []string{"HOME=/nowhere"}}); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// TestTenantsHaveLimits: by default, every resource that a tenant can use is limited.
func TestTenantsHaveLimits(t *testing.T) {
	t.Parallel()
	l := tenantLimits(standard(t))
	if l.Sandboxes <= 0 || l.CPU <= 0 || l.Memory <= 0 || l.Disk <= 0 || l.CreateRate <= 0 || l.Burst <= 0 ||
		l.Calls <= 0 || l.RequestMemory <= 0 {
		t.Errorf("got %+v, want every limit set", l)
	}
	r := newRig(t, func(c *config.Cove) {
		s := standard(t)
		c.TenantSandboxes, c.TenantMemory, c.TenantDisk, c.TenantCPU, c.TenantRate, c.TenantBurst = 3, s.TenantMemory,
			s.TenantDisk, s.TenantCPU, 60, 5
	})
	user, _ := r.key("acme", "user")
	for body, want := range map[string]string{
		`{"name":"m","memory_limit":"1000Gi"}`: "memory",
		`{"name":"c","cpu_limit":"5000"}`:      "cpu",
		`{"name":"d","disk_limit":"5000Gi"}`:   "disk",
	} {
		if a := r.do(user, "POST", "/api/v1/sandbox", body); a.status != 400 && a.status != 429 || !strings.Contains(a.body, want) {
			t.Errorf("%s: got %d %s, want a rejection that says %s", body, a.status, a.body, want)
		}
	}
	for i := range 4 {
		a := r.do(user, "POST", "/api/v1/sandbox", fmt.Sprintf(`{"name":"s%d"}`, i))
		if want := map[bool]int{true: 200, false: 429}[i < 3]; a.status != want {
			t.Errorf("sandbox %d: got %d %s, want %d", i, a.status, a.body, want)
		}
	}
}

// TestMachineBoundsASandbox: no caller, not even the operator, gets a sandbox with more memory
// than the machine has.
func TestMachineBoundsASandbox(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	r.key("acme", "user") // which reads the admin's key
	for body, want := range map[string]int{`{"name":"a","memory_limit":"1000Gi"}`: 400,
		`{"name":"b","memory":"1000Gi"}`: 400, `{"name":"c","memory_limit":"2Gi"}`: 200} {
		if a := r.do(r.admin, "POST", "/api/v1/sandbox", body); a.status != want || want == 400 &&
			!strings.Contains(a.body, "this machine has 65536Mi") {
			t.Errorf("%s: got %d %s, want %d", body, a.status, a.body, want)
		}
	}
}

// TestUnfinishedRequestsTakeLittle: eight unfinished requests of 60 MB each, together half a gigabyte,
// are rejected or limited. Requests of other tenants are served.
func TestUnfinishedRequestsTakeLittle(t *testing.T) {
	r := newRig(t, func(c *config.Cove) {
		s := standard(t)
		c.BodyLimit, c.ToolLimit, c.RequestMemory, c.TenantRequests = s.BodyLimit, s.ToolLimit, s.RequestMemory, s.TenantRequests
	})
	user, _ := r.key("acme", "user")
	other, _ := r.key("other", "user")
	before := heap()
	const size = 60_000_000
	junk := bytes.Repeat([]byte("x"), 1<<20)
	var sending sync.WaitGroup
	for i := range 16 {
		path, length := "/api/v1/sandbox", size
		if i%2 == 1 {
			path, length = "/mcp", 15<<20
		}
		c, err := net.Dial("tcp", r.server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %s\r\nContent-Type: "+
			"application/json\r\nContent-Length: %d\r\n\r\n{\"name\":\"", path, user, length)
		sending.Go(func() { // until the server rejects the request, or has received all but its end
			for range length/len(junk) - 1 {
				if _, err := c.Write(junk); err != nil {
					return
				}
			}
		})
	}
	sent := make(chan struct{})
	go func() { sending.Wait(); close(sent) }()
	most := before
	testenv.Poll(t, "each request is rejected or waits for its end", func() bool {
		most = max(most, heap())
		select {
		case <-sent:
			return true
		default:
			return false
		}
	})
	most = max(most, heap())
	// The tenant's 32 MiB, and the fixed cost of the first request.
	if grown := int64(most) - int64(before); grown > 64<<20 {
		t.Errorf("the hub has grown by %d MiB, want at most 64", grown>>20)
	}
	if a := r.do(other, "GET", "/api/v1/sandbox", ""); a.status != 200 {
		t.Errorf("another tenant got %d %s, want 200", a.status, a.body)
	}
	if a := r.do(other, "POST", "/mcp", `{"method":"tools/list"}`); a.status != 200 {
		t.Errorf("another tenant got %d %s, want 200", a.status, a.body)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
