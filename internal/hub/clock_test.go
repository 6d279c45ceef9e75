package hub

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/hub/e2b"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// quiet is a hub on a provider of pipes, in a bubble with simulated time.
type quiet struct {
	*testing.T
	*Hub
	p     *pipeProvider
	cfg   Config
	tasks atomic.Bool // a command runs in the background
}

// inBubble runs f with a hub in simulated time, so waiting takes no real time.
func inBubble(t *testing.T, f func(q *quiet)) { inBubbleWith(t, Config{}, f) }

func inBubbleWith(t *testing.T, cfg Config, f func(q *quiet)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &quiet{T: t, cfg: cfg}
		q.p = newPipeProvider(func(sb sandbox.Sandbox) http.Handler {
			return newGuest(sb, func(g *guestServer) {
				g.mux.HandleFunc("GET /v1/shell/sessions", func(w http.ResponseWriter, _ *http.Request) {
					status := "idle"
					if q.tasks.Load() {
						status = "active"
					}
					fmt.Fprintf(w, `{"success":true,"data":{"sessions":{"a":{"status":%q}}}}`, status)
				})
			})
		})
		q.start()
		f(q)
		q.Hub.Close()
		q.p.Close()
	})
}

func (q *quiet) start() {
	var err error
	cfg := q.cfg
	cfg.Provider, cfg.Metrics = q.p, metric.New()
	if q.Hub, err = Open(cfg); err != nil {
		q.Fatal(err)
	}
	q.Hub.Begin(context.Background())
	synctest.Wait()
}

func (q *quiet) make(in lifecycle.CreateIn) sandbox.Sandbox {
	q.Helper()
	sb, err := q.lifecycle.Make(q.Context(), in)
	if err != nil {
		q.Fatal(err)
	}
	return sb
}

// after waits and returns the state; "" if the sandbox was deleted.
func (q *quiet) after(d time.Duration, sb sandbox.Sandbox) sandbox.State {
	q.Helper()
	time.Sleep(d)
	synctest.Wait()
	now, err := q.p.Get(q.Context(), sb.ID)
	if errors.Is(err, sandbox.ErrNotFound) {
		return ""
	}
	if err != nil {
		q.Fatal(err)
	}
	return now.State
}

func (q *quiet) want(d time.Duration, sb sandbox.Sandbox, want sandbox.State) {
	q.Helper()
	if got := q.after(d, sb); got != want {
		q.Errorf("after %v it is %q, want %q", d, got, want)
	}
}

func idle(minutes float64, policy string) lifecycle.CreateIn {
	return lifecycle.CreateIn{IdleTimeout: &minutes, IdlePolicy: policy}
}

func TestIdlePolicies(t *testing.T) {
	inBubble(t, func(q *quiet) {
		gone, paused, stopped, never := q.make(idle(10, "delete")), q.make(idle(10, "pause")),
			q.make(idle(10, "scaledown")), q.make(idle(-1, "delete"))
		for _, sb := range []sandbox.Sandbox{gone, paused, stopped, never} {
			q.want(0, sb, sandbox.Running)
		}
		q.want(10*time.Minute-time.Second, gone, sandbox.Running)
		q.want(2*time.Second, gone, "")
		q.want(0, paused, sandbox.Paused)
		q.want(0, stopped, sandbox.Stopped)
		q.want(0, never, sandbox.Running)
		// A suspended sandbox is kept until it expires.
		q.want(30*time.Minute, paused, sandbox.Paused)
		q.want(19*time.Minute, stopped, sandbox.Stopped)
		q.want(2*time.Minute, paused, "")
		q.want(0, stopped, "")
		q.want(0, never, "")
	})
}

func TestTimeout(t *testing.T) {
	inBubble(t, func(q *quiet) {
		five, forever, more := q.make(lifecycle.CreateIn{Timeout: new(5.0)}),
			q.make(lifecycle.CreateIn{Name: "forever", Timeout: new(-1.0), IdleTimeout: new(-1.0)}),
			q.make(lifecycle.CreateIn{Name: "more", Timeout: new(5.0), IdleTimeout: new(-1.0)})
		// Use does not extend the timeout.
		b, err := q.fleet.Enter(q.Context(), five, time.Second)
		if err != nil {
			q.Fatal(err)
		}
		q.want(5*time.Minute-time.Second, five, sandbox.Running)
		if _, err := q.lifecycle.Extend(q.Context(), lifecycle.ExtendIn{Name: "more", Timeout: new(5.0)}); err != nil {
			q.Fatal(err)
		}
		q.want(2*time.Second, five, "")
		b.Leave()
		q.want(4*time.Minute, more, sandbox.Running)
		q.want(time.Minute, more, "")
		q.want(30*time.Hour, forever, sandbox.Running)
	})
}

// TestUseRestartsIdleTimeout: requests, open streams and running commands count.
func TestUseRestartsIdleTimeout(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(10.0), IdlePolicy: "pause"})
		for range 5 {
			b, err := q.fleet.Enter(q.Context(), sb, time.Second)
			if err != nil {
				q.Fatal(err)
			}
			b.Leave()
			q.want(9*time.Minute, sb, sandbox.Running)
		}
		b, err := q.fleet.Enter(q.Context(), sb, time.Second)
		if err != nil {
			q.Fatal(err)
		}
		q.want(5*time.Hour, sb, sandbox.Running)
		b.Leave()
		q.want(10*time.Minute-time.Second, sb, sandbox.Running)
		q.want(2*time.Second, sb, sandbox.Paused)
		// A request wakes it and restarts its idle timeout.
		if b, err = q.fleet.Enter(q.Context(), sb, time.Second); err != nil {
			q.Fatal(err)
		}
		b.Leave()
		q.want(10*time.Minute-time.Second, sb, sandbox.Running)
		q.want(2*time.Second, sb, sandbox.Paused)
		if _, err := q.lifecycle.Resume(q.Context(), lifecycle.NameIn{Name: sb.Spec.Name}); err != nil {
			q.Fatal(err)
		}
		q.tasks.Store(true)
		q.want(time.Hour, sb, sandbox.Running)
		q.tasks.Store(false)
		q.want(11*time.Minute, sb, sandbox.Paused)
	})
}

// TestTimeoutsSurviveRestart: the next hub continues the timeouts.
func TestTimeoutsSurviveRestart(t *testing.T) {
	inBubble(t, func(q *quiet) {
		life := q.make(lifecycle.CreateIn{Timeout: new(60.0), IdleTimeout: new(-1.0)})
		lazy := q.make(lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(20.0), IdlePolicy: "pause"})
		used := q.make(lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(20.0), IdlePolicy: "stop"})
		time.Sleep(15 * time.Minute)
		b, err := q.fleet.Enter(q.Context(), used, time.Second)
		if err != nil {
			q.Fatal(err)
		}
		b.Leave()
		time.Sleep(90 * time.Second)
		// The hub is killed, so it saves nothing at the end.
		q.Hub.tasks.Seal()
		q.Hub.Close()
		q.start()
		q.want(2*time.Minute, lazy, sandbox.Running) // 18.5 minutes unused
		q.want(3*time.Minute, lazy, sandbox.Paused)
		q.want(10*time.Minute, used, sandbox.Running) // 16.5 minutes unused
		q.want(5*time.Minute, used, sandbox.Stopped)
		q.want(22*time.Minute, life, sandbox.Running) // 58.5 minutes old
		q.want(2*time.Minute, life, "")
	})
}

// TestNoSuspendAfterRestart: disconnected clients have time to reconnect.
func TestNoSuspendAfterRestart(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(10.0)})
		q.Hub.Close()
		time.Sleep(time.Hour)
		q.start()
		q.want(29*time.Second, sb, sandbox.Running)
		b, err := q.fleet.Enter(q.Context(), sb, time.Second)
		if err != nil {
			q.Fatal(err)
		}
		b.Leave()
		q.want(9*time.Minute, sb, sandbox.Running)
		q.want(2*time.Minute, sb, "")
	})
}

// TestSleepAndRequestAtOnce: a request never reaches a sandbox that is being suspended.
func TestSleepAndRequestAtOnce(t *testing.T) {
	inBubble(t, func(q *quiet) {
		sb := q.make(lifecycle.CreateIn{Timeout: new(-1.0), IdleTimeout: new(10.0), IdlePolicy: "pause"})
		for range 20 {
			time.Sleep(10*time.Minute - time.Nanosecond)
			done := make(chan error, 10)
			for range 10 {
				go func() {
					time.Sleep(time.Nanosecond)
					b, err := q.fleet.Enter(q.Context(), sb, time.Minute)
					if err == nil {
						now, _ := q.p.Get(q.Context(), sb.ID)
						if now.State != sandbox.Running {
							err = errors.New("used while " + string(now.State))
						}
						b.Leave()
					}
					done <- err
				}()
			}
			for range 10 {
				if err := <-done; err != nil {
					q.Error(err)
				}
			}
		}
	})
}

// TestStreamsLiveForHours: no component between a caller and a sandbox closes a stream
// that is mostly idle.
func TestStreamsLiveForHours(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const hours = 4
		p := newPipeProvider(func(sb sandbox.Sandbox) http.Handler {
			return newGuest(sb, func(g *guestServer) {
				g.mux.HandleFunc("/sse", func(w http.ResponseWriter, r *http.Request) {
					for i := range hours {
						time.Sleep(time.Hour)
						fmt.Fprintf(w, "data: %d\n\n", i)
						http.NewResponseController(w).Flush()
					}
				})
			})
		})
		h := build(Config{Provider: p}, stores{})
		h.Begin(context.Background())
		sb, err := h.lifecycle.Make(t.Context(), lifecycle.CreateIn{Name: "a", Timeout: new(-1.0)})
		if err != nil {
			t.Fatal(err)
		}
		lis := newPipes()
		table := op.NewTable(h.Ops())
		proxy, _ := table.Get("sandbox_proxy")
		server := &http.Server{Handler: proxy.Handler}
		go server.Serve(lis)
		client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _,
			_ string) (net.Conn, error) {
			return lis.dial(ctx)
		}}}
		res, err := client.Get("http://hub/sandbox/" + sb.Spec.Name + "/sse")
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewReader(res.Body)
		for i := range hours {
			if line, err := in.ReadString('\n'); line != "data: "+strconv.Itoa(i)+"\n" {
				t.Fatalf("got %v %v, want line %q", line, err, "data: "+strconv.Itoa(i)+"\n")
			}
			in.ReadString('\n')
		}
		res.Body.Close()

		c := upgraded(t, lis, "/sandbox/a/ws")
		time.Sleep(hours * time.Hour)
		if now, err := p.Get(t.Context(), sb.ID); err != nil || now.State != sandbox.Running {
			t.Errorf("got %v %v, want state running", now.State, err)
		}
		// A masked text frame with one letter comes back unmasked.
		c.Write([]byte{0x81, 0x81, 0, 0, 0, 0, 'x'})
		got := make([]byte, 3)
		if _, err := io.ReadFull(c, got); err != nil || got[2] != 'x' {
			t.Errorf("% x %v", got, err)
		}
		c.Close()
		client.CloseIdleConnections()
		server.Close()
		h.Close()
		p.Close()
	})
}

// upgraded opens a WebSocket without a library, which would use its own timers.
func upgraded(t *testing.T, lis *pipes, path string) io.ReadWriteCloser {
	t.Helper()
	c, err := lis.dial(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, "GET "+path+
		" HTTP/1.1\r\nHost: hub\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: "+
		"13\r\nSec-WebSocket-Key: "+strings.Repeat("A", 22)+"==\r\n\r\n")
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil || res.StatusCode != 101 {
		t.Fatalf("got %v %v, want status 101", res, err)
	}
	return struct {
		io.Reader
		io.Writer
		io.Closer
	}{in, c, c}
}

// TestEndPolicies: the action at the end of a timeout, for sandboxes of our own API.
func TestEndPolicies(t *testing.T) {
	inBubble(t, func(q *quiet) {
		end := func(name, policy string) sandbox.Sandbox {
			return q.make(lifecycle.CreateIn{Name: name, Timeout: new(5.0), IdleTimeout: new(-1.0), TimeoutPolicy: policy})
		}
		gone, paused, stopped := end("gone", "delete"), end("paused", "pause"), end("stopped", "stop")
		q.want(5*time.Minute-time.Second, gone, sandbox.Running)
		q.want(0, paused, sandbox.Running)
		q.want(0, stopped, sandbox.Running)
		q.want(2*time.Second, gone, "")
		q.want(0, paused, sandbox.Paused)
		q.want(0, stopped, sandbox.Stopped)
		// Suspended sandboxes are kept, and waking restarts the timeout.
		q.want(100*time.Hour, paused, sandbox.Paused)
		q.want(0, stopped, sandbox.Stopped)
		if _, err := q.lifecycle.Resume(q.Context(), lifecycle.NameIn{Name: "paused"}); err != nil {
			q.Fatal(err)
		}
		q.want(5*time.Minute-time.Second, paused, sandbox.Running)
		q.want(2*time.Second, paused, sandbox.Paused)
	})
}

// TestE2BMetrics: a sandbox is measured regularly, and a request can select a time. A sandbox is measured as long as it exists.
func TestE2BMetrics(t *testing.T) {
	inBubble(t, func(q *quiet) {
		start := time.Now()
		made, err := q.Hub.e2b.Create(q.Context(), e2b.CreateIn{TemplateID: "base"})
		if err != nil {
			q.Fatal(err)
		}
		testenv.Advance(62 * time.Second)
		metrics := func(from, to time.Duration) []e2b.Metric {
			q.Helper()
			in := e2b.MetricsIn{ID: made.SandboxID, Start: start.Add(from).Unix()}
			if to != 0 {
				in.End = start.Add(to).Unix()
			}
			list, err := q.Hub.e2b.Metrics(q.Context(), in)
			if err != nil {
				q.Fatal(err)
			}
			return list
		}
		if got := metrics(0, 0); len(got) < 10 || len(got) > 13 {
			q.Errorf("got %d samples of a minute, want one in 5 s", len(got))
		}
		if got := metrics(20*time.Second, 40*time.Second); len(got) < 4 || len(got) > 5 {
			q.Errorf("got %d samples of 20 s, want 4 or 5", len(got))
		}
		if got := metrics(-time.Hour, -time.Minute); len(got) != 0 {
			q.Errorf("got %v from before the sandbox, want none", got)
		}
		all, err := q.Hub.e2b.AllMetrics(q.Context(), e2b.AllMetricsIn{IDs: made.SandboxID + ",sb0000000000000000"})
		if _, ok := all.Sandboxes[made.SandboxID]; err != nil || !ok || len(all.Sandboxes) != 1 {
			q.Errorf("metrics of several: got %v %v, want one sandbox", all, err)
		}
		if _, err := q.Hub.e2b.Metrics(q.Context(), e2b.MetricsIn{ID: made.SandboxID, Start: 9, End: 8}); err == nil {
			q.Error("end before start: got no error")
		}
	})
}

// TestEndOfE2BSandboxes: connect never shortens the lifetime, set_timeout can. The timeout of a
// suspended sandbox is stopped.
func TestEndOfE2BSandboxes(t *testing.T) {
	inBubble(t, func(q *quiet) {
		create := func(in e2b.CreateIn) sandbox.Sandbox {
			q.Helper()
			in.TemplateID = "base"
			made, err := q.Hub.e2b.Create(q.Context(), in)
			if err != nil {
				q.Fatal(err)
			}
			sb, err := q.fleet.Find(q.Context(), made.SandboxID)
			if err != nil {
				q.Fatal(err)
			}
			return sb
		}
		check := func(err error) {
			q.Helper()
			if err != nil {
				q.Fatal(err)
			}
		}
		usual, short, sleeper, disk := create(e2b.CreateIn{}), create(e2b.CreateIn{Timeout: new(10)}),
			create(e2b.CreateIn{Timeout: new(10), AutoPause: true}), create(e2b.CreateIn{Timeout: new(10), AutoPause: true, PauseDisk: new(false)})
		q.want(9*time.Second, short, sandbox.Running)
		q.want(2*time.Second, short, "")
		q.want(0, sleeper, sandbox.Paused)
		q.want(0, disk, sandbox.Stopped)
		_, err := q.Hub.e2b.Connect(q.Context(), e2b.ConnectIn{ID: usual.ID, Timeout: new(1)})
		check(err)
		q.want(288*time.Second, usual, sandbox.Running) // 299 seconds old
		q.want(2*time.Second, usual, "")

		q.want(50*time.Hour, sleeper, sandbox.Paused)
		_, err = q.Hub.e2b.Connect(q.Context(), e2b.ConnectIn{ID: sleeper.ID, Timeout: new(100)})
		check(err)
		q.want(99*time.Second, sleeper, sandbox.Running)
		q.want(2*time.Second, sleeper, sandbox.Paused)
		_, err = q.Hub.e2b.Resume(q.Context(), e2b.ResumeIn{ID: sleeper.ID, AutoPause: new(false)})
		check(err)
		q.want(14*time.Second, sleeper, sandbox.Running)
		q.want(2*time.Second, sleeper, "")

		_, err = q.Hub.e2b.Connect(q.Context(), e2b.ConnectIn{ID: disk.ID, Timeout: new(1000)})
		check(err)
		_, err = q.Hub.e2b.Refresh(q.Context(), e2b.RefreshIn{ID: disk.ID, Duration: 10})
		check(err)
		q.want(100*time.Second, disk, sandbox.Running)
		_, err = q.Hub.e2b.Pause(q.Context(), e2b.PauseIn{ID: disk.ID, Memory: true})
		check(err)
		q.want(time.Hour, disk, sandbox.Paused)
		_, err = q.Hub.e2b.Connect(q.Context(), e2b.ConnectIn{ID: disk.ID, Memory: new(false)})
		check(err)
		_, err = q.Hub.e2b.SetTimeout(q.Context(), e2b.TimeoutIn{ID: disk.ID, Timeout: 5})
		check(err)
		q.want(4*time.Second, disk, sandbox.Running)
		q.want(2*time.Second, disk, sandbox.Stopped)
	})
}

// TestDiskOfE2BSandboxes: the timeout and kill of an E2B client are final, unless the client wants to keep the disk. It is then
// kept until it is killed, and can be restored for an hour after that.
func TestDiskOfE2BSandboxes(t *testing.T) {
	inBubble(t, func(q *quiet) {
		create := func(in e2b.CreateIn) sandbox.Sandbox {
			q.Helper()
			in.TemplateID, in.Timeout = "base", new(60)
			made, err := q.Hub.e2b.Create(q.Context(), in)
			if err != nil {
				q.Fatal(err)
			}
			sb, err := q.fleet.Find(q.Context(), made.SandboxID)
			if err != nil {
				q.Fatal(err)
			}
			return sb
		}
		kill := func(sb sandbox.Sandbox) {
			q.Helper()
			if _, err := q.Hub.e2b.Kill(q.Context(), e2b.IDIn{ID: sb.ID}); err != nil {
				q.Error(err)
			}
		}
		expires, killed, kept := create(e2b.CreateIn{}), create(e2b.CreateIn{}), create(e2b.CreateIn{AutoPause: true})
		kill(killed)
		q.want(61*time.Second, expires, "")
		for _, sb := range []sandbox.Sandbox{expires, killed} {
			q.undelete(lifecycle.UndeleteIn{Name: sb.ID}, "created with keep")
		}
		q.want(90*24*time.Hour, kept, sandbox.Paused)
		kill(kept)
		if _, err := q.fleet.Find(q.Context(), kept.ID); err == nil {
			q.Error("the killed sandbox is still found")
		}
		q.undelete(lifecycle.UndeleteIn{Name: strings.ReplaceAll(kept.ID, "-", "")}, "")
		q.want(0, kept, sandbox.Stopped)
		kill(kept)
		q.want(61*time.Minute, kept, "")
	})
}
