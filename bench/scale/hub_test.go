//go:build linux

package scale

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// warm is the size of the warm pool.
const warm = 50

// hub is the real hub program.
type hub struct {
	w       *world
	dir     string
	program string
	cmd     *exec.Cmd
	client  *client.Client
	http    *http.Client
	ids     []string
	astray  atomic.Int64 // requests that did not reach their Pod
}

const profileAddress = "127.0.0.1:16060"

func newHub(w *world) *hub {
	dir, err := os.MkdirTemp("", "cove-scale-")
	if err != nil {
		w.b.Fatal(err)
	}
	h := &hub{w: w, dir: dir, program: filepath.Join(dir, "cove")}
	w.b.Cleanup(func() { h.kill(); os.RemoveAll(dir) })
	if other := os.Getenv("SCALE_HUB"); other != "" {
		h.program = other
	} else {
		testenv.Build(w.b, map[string]string{h.program: "./testdata/hub"})
	}
	socket := filepath.Join(dir, "hub.sock")
	h.http = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 128,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		}}}
	if h.client, err = client.New(client.Config{URL: "unix:" + socket}); err != nil {
		w.b.Fatal(err)
	}
	w.b.Cleanup(func() { h.client.Close(); h.http.CloseIdleConnections() })
	return h
}

// start starts the hub and waits until it answers.
func (h *hub) start() {
	h.w.b.Helper()
	h.cmd = exec.Command(h.program, "hub", "--provider", "kubernetes", "--kubernetes-config", h.w.k.Kubeconfig,
		"--kubernetes-namespace", namespace, "--kubernetes-reach", "pod", "--default-image", "fake:1",
		"--kubernetes-programs-image", "fake:1", "--state", h.dir, "--listen",
		"unix:"+filepath.Join(h.dir, "hub.sock"), "--creates", "64", "--pool", strconv.Itoa(warm), "--log-level", "error")
	h.cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + h.dir, "PROFILE=" + profileAddress}
	h.cmd.Stderr = os.Stderr
	h.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := h.cmd.Start(); err != nil {
		h.w.b.Fatal(err)
	}
	h.w.wait("the hub answers", 10*time.Minute, func() bool { _, err := h.get("/api/v1/hub"); return err == nil })
}

func (h *hub) kill() {
	if h.cmd != nil {
		h.cmd.Process.Kill()
		h.cmd.Wait()
		h.cmd = nil
		h.w.pods.hangUp()
	}
}

// stop ends the hub with SIGTERM.
func (h *hub) stop() {
	began := time.Now()
	h.cmd.Process.Signal(syscall.SIGTERM)
	h.cmd.Wait()
	h.cmd = nil
	fmt.Printf("SIGTERM: ended after %v\n", time.Since(began).Round(time.Millisecond))
}

// restart kills the hub, and measures the time until the next one lists all sandboxes and can reach one.
func (h *hub) restart() {
	// Every sandbox has a connection for egress, except a few whose simulated Pods share an address.
	connected := func() bool { return h.files() >= len(h.ids)*98/100 }
	h.w.wait("all sandboxes are connected", 10*time.Minute, connected)
	h.kill()
	before := h.w.calls()
	began := time.Now()
	h.start()
	answers := time.Since(began)
	h.w.wait("all sandboxes are listed", 5*time.Minute, func() bool {
		data, err := h.get("/api/v1/sandbox")
		return err == nil && entries(data) >= len(h.ids)
	})
	listed := time.Since(began)
	h.w.wait("a sandbox is reached", 5*time.Minute, func() bool { _, err := h.get("/sandbox/" + h.any() + "/readyz"); return err == nil })
	reached := time.Since(began)
	h.w.wait("all sandboxes are connected again", 10*time.Minute, connected)
	fmt.Printf("restart after kill -9: answers after %v, lists all after %v, reaches one after %v, has all "+
		"connected after %v, with %v of a processor; calls of the API server: %s\n",
		answers.Round(time.Millisecond), listed.Round(time.Millisecond), reached.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond), h.used(), difference(before, h.w.calls()))
}

// calls counts requests to the API server about objects of the hub.
func (w *world) calls() map[string]float64 {
	var text []byte
	w.must(http.MethodGet, "/metrics", nil, &text)
	out := map[string]float64{}
	for line := range strings.SplitSeq(string(text), "\n") {
		rest, ok := strings.CutPrefix(line, "apiserver_request_total{")
		if !ok {
			continue
		}
		labels, value, _ := strings.Cut(rest, "} ")
		part := map[string]string{}
		for pair := range strings.SplitSeq(labels, ",") {
			name, text, _ := strings.Cut(pair, "=")
			part[name] = strings.Trim(text, `"`)
		}
		verb, resource := part["verb"], part["resource"]
		ours := verb == "LIST" && part["scope"] == "namespace" || (verb == "GET" || verb == "PUT" || verb == "POST" ||
			verb == "PATCH" || verb == "APPLY") && part["subresource"] == ""
		if n, err := strconv.ParseFloat(value, 64); err == nil && ours &&
			slices.Contains([]string{"pods", "secrets", "persistentvolumeclaims", "networkpolicies"}, resource) {
			out[strings.ToLower(verb)+" "+resource] += n
		}
	}
	return out
}

func difference(before, after map[string]float64) string {
	var parts []string
	for _, what := range slices.Sorted(maps.Keys(after)) {
		if d := after[what] - before[what]; d > 0 {
			parts = append(parts, fmt.Sprintf("%.0f %s", d, what))
		}
	}
	return strings.Join(parts, ", ")
}

// any returns the ID of a random sandbox.
func (h *hub) any() string { return h.ids[rand.IntN(len(h.ids))] }

func (h *hub) get(path string) ([]byte, error) {
	resp, err := h.http.Get("http://hub" + path)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s: %.200s", path, resp.Status, data)
	}
	return data, err
}

// mustGet reads a list of sandboxes; want is its minimum length.
func (h *hub) mustGet(path string, want int) {
	data, err := h.get(path)
	if err != nil || want >= 0 && entries(data) < want {
		h.w.b.Errorf("%s: got %d sandboxes, %v", path, entries(data), err)
	}
}

// route sends a request through the hub to the Pod of a sandbox, and counts requests that reach another Pod.
func (h *hub) route(id string) {
	if _, err := h.get("/sandbox/" + id + "/readyz"); err != nil {
		h.astray.Add(1)
	}
}

// entries counts the sandboxes of a list.
func entries(data []byte) int { return bytes.Count(data, []byte(`"last_active_at"`)) }

// cost is the duration of calls, and the CPU time of the hub per call. On a busy machine, only the latter is meaningful.
type cost struct {
	took durations
	used time.Duration
}

func (c cost) String() string {
	return fmt.Sprintf("%v, processor %v", c.took, c.used.Round(10*time.Microsecond))
}

// repeat measures n calls, some of them concurrent.
func (h *hub) repeat(n, atOnce int, f func()) cost {
	took := make(durations, n)
	before := h.used()
	next := make(chan int)
	var wg sync.WaitGroup
	for range atOnce {
		wg.Go(func() {
			for i := range next {
				at := time.Now()
				f()
				took[i] = time.Since(at)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
	return cost{took, (h.used() - before) / time.Duration(n)}
}

// used returns the CPU time of the hub.
func (h *hub) used() time.Duration {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", h.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

func (h *hub) status(field string) string {
	data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.cmd.Process.Pid))
	_, rest, _ := strings.Cut(string(data), "\n"+field+":")
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}

func (h *hub) memory() string {
	mb := func(field string) int {
		n, _ := strconv.Atoi(strings.Fields(h.status(field) + " 0")[0])
		return n >> 10
	}
	return fmt.Sprintf("%d MB resident, %d MB at most", mb("VmRSS"), mb("VmHWM"))
}

func (h *hub) files() int {
	list, _ := os.ReadDir(fmt.Sprintf("/proc/%d/fd", h.cmd.Process.Pid))
	return len(list)
}

// idle returns the CPU usage of the hub without requests.
func (h *hub) idle(span time.Duration) float64 {
	before := h.used()
	<-time.After(span)
	return 100 * float64(h.used()-before) / float64(span)
}

// metric reads a metric of the hub.
func (h *hub) metric(name string) float64 {
	data, err := h.get("/metrics")
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut("\n"+string(data), "\n"+name+" ")
	value, _, _ := strings.Cut(rest, "\n")
	n, _ := strconv.ParseFloat(value, 64)
	return n
}

// profile stores profiles of the hub if SCALE_PROFILE is set.
func (h *hub) profile(size int) {
	dir := os.Getenv("SCALE_PROFILE")
	if dir == "" {
		return
	}
	for name, path := range map[string]string{"heap": "heap", "allocs": "allocs", "goroutine": "goroutine?debug=1",
		"processor": "profile?seconds=20"} {
		resp, err := http.Get("http://" + profileAddress + "/debug/pprof/" + path)
		if err != nil {
			h.w.b.Error(err)
			continue
		}
		data, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%s-%d", name, size)), data, 0o644); err != nil {
			h.w.b.Error(err)
		}
	}
}

// renameRecord changes the ID and name in the record of a sandbox.
func renameRecord(encoded, old, id, name string) string {
	raw, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		return encoded
	}
	var record object
	if json.Unmarshal(bytes.ReplaceAll(raw, []byte(old), []byte(id)), &record) != nil {
		return encoded
	}
	record["sandbox"].(object)["spec"].(object)["name"] = name
	out, err := json.Marshal(record)
	if err != nil {
		return encoded
	}
	return base64.StdEncoding.EncodeToString(out)
}
