//go:build linux

// Package scale measures one hub with thousands of sandboxes on a simulated cluster: the API server, etcd, the scheduler
// and the controllers are real, kwok simulates nodes and Pods, and one process serves all Pods.
//
//	make scale
//
// Settings: SCALE_SIZES (1000,5000,10000), SCALE_NODES (1000), SCALE_CREATED (1000: number of sandboxes that the hub
// creates; the others are written into the cluster and adopted), SCALE_PROFILE (a folder for profiles of the hub), SCALE_HUB
// (another build of testdata/hub for comparison).
package scale

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func number(b *testing.B, name string, def int) int {
	n, err := strconv.Atoi(cmp.Or(os.Getenv(name), strconv.Itoa(def)))
	if err != nil {
		b.Fatalf("%s: %v", name, err)
	}
	return n
}

// BenchmarkScale prints the cost of one hub at each size.
func BenchmarkScale(b *testing.B) {
	testenv.NeedRoot(b)
	runtime.LockOSThread() // child processes end with this thread, even if the benchmark is killed
	defer runtime.UnlockOSThread()
	w := newWorld(b, number(b, "SCALE_NODES", 1000))
	h := newHub(w)
	h.start()
	created := number(b, "SCALE_CREATED", 1000)
	for _, text := range strings.Split(cmp.Or(os.Getenv("SCALE_SIZES"), "1000,5000,10000"), ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			b.Fatal(err)
		}
		if have := len(h.ids); have < created && have < size {
			h.create(min(size, created) - have)
		}
		if !h.write(size - len(h.ids)) {
			fmt.Printf("stopped at %d sandboxes: the cluster did not make the others ready in time\n", w.pods.count())
			return
		}
		h.restart()
		h.measure()
	}
	h.stop()
}

// create creates sandboxes through the hub.
func (h *hub) create(n int) {
	h.w.b.Helper()
	began, first := time.Now(), len(h.ids)
	var mu sync.Mutex
	took := durations{}
	h.w.parallel(n, func(i int) {
		at := time.Now()
		sb, err := h.client.Create(h.w.b.Context(), client.CreateOptions{Name: fmt.Sprintf("made-%d", first+i), Timeout: -1, IdleTimeout: -1})
		if err != nil {
			h.w.b.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(at))
		h.ids = append(h.ids, sb.ID)
	})
	fmt.Printf("the hub created %d sandboxes in %v: %.1f/s, each %v\n", n, time.Since(began).Round(time.Second),
		float64(n)/time.Since(began).Seconds(), took)
}

// write writes copies of a sandbox with other names into the cluster, in the format of the hub, on given nodes. It reports
// whether all Pods were ready in time.
func (h *hub) write(n int) bool {
	if n <= 0 {
		return true
	}
	w := h.w
	h.kill()
	began := time.Now()
	var secret, pod object
	w.must(http.MethodGet, "/api/v1/namespaces/"+namespace+"/secrets/"+h.ids[0], nil, &secret)
	w.must(http.MethodGet, "/api/v1/namespaces/"+namespace+"/pods/"+h.ids[0], nil, &pod)
	old, first := h.ids[0], len(h.ids)
	ids := make([]string, n)
	w.parallel(n, func(i int) {
		ids[i] = fmt.Sprintf("sb-%04x%06d", rand.IntN(1<<16), first+i)
		s := rename(secret, old, ids[i], fmt.Sprintf("made-%d", first+i))
		w.must(http.MethodPost, "/api/v1/namespaces/"+namespace+"/secrets", s, &s)
		p := rename(pod, old, ids[i], fmt.Sprintf("made-%d", first+i))
		p["metadata"].(object)["ownerReferences"].([]any)[0].(object)["uid"] = s["metadata"].(object)["uid"]
		p["spec"].(object)["nodeName"] = nodeName((first + i) % number(w.b, "SCALE_NODES", 1000))
		w.must(http.MethodPost, "/api/v1/namespaces/"+namespace+"/pods", p, nil)
	})
	written := time.Since(began)
	w.pods.known(ids, old)
	h.ids = append(h.ids, ids...)
	ok := testenv.Within(20*time.Minute, func() bool { return w.pods.count() >= len(h.ids) })
	fmt.Printf("%d more sandboxes written in %v, ready after %v\n", n, written.Round(time.Second), time.Since(began).Round(time.Second))
	h.start()
	return ok
}

// rename copies an object for another sandbox.
func rename(o object, old, id, name string) object {
	data, _ := json.Marshal(o)
	var out object
	json.Unmarshal([]byte(strings.ReplaceAll(string(data), old, id)), &out)
	m := out["metadata"].(object)
	for _, field := range []string{"uid", "resourceVersion", "creationTimestamp", "managedFields", "generation"} {
		delete(m, field)
	}
	delete(out, "status")
	m["annotations"].(object)["io.cove.name"] = name
	if spec, ok := out["spec"].(object); ok {
		spec["hostname"] = name
	}
	if data, ok := out["data"].(object); ok { // the record, which contains the ID
		data["record.json"] = renameRecord(data["record.json"].(string), old, id, name)
	}
	return out
}

// measure prints the current cost of the hub.
func (h *hub) measure() {
	b := h.w.b
	b.Helper()
	n := len(h.ids)
	load, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf("--- %d sandboxes: the hub has %s; open files %d, threads %s; load of the machine %.15s\n", n,
		h.memory(), h.files(), h.status("Threads"), load)
	fmt.Printf("list of all (%d)          %v\n", n, h.repeat(7, 1, func() { h.mustGet("/api/v1/sandbox", n) }))
	fmt.Printf("list, page of 100         %v\n", h.repeat(100, 4, func() { h.mustGet("/api/v1/sandbox?limit=100", -1) }))
	fmt.Printf("get                       %v\n", h.repeat(2000, 8, func() { h.mustGet("/api/v1/sandbox/"+h.any(), -1) }))
	fmt.Printf("get, no such name         %v\n", h.repeat(200, 8, func() { h.get("/api/v1/sandbox/nobody") }))
	fmt.Printf("route, first request      %v\n", h.repeat(500, 8, func() { h.route(h.any()) }))
	few := h.ids[:min(16, n)]
	fmt.Printf("route, further requests   %v\n", h.repeat(2000, 8, func() { h.route(few[rand.IntN(len(few))]) }))
	if n := h.astray.Swap(0); n > 0 {
		fmt.Printf("%d of 2500 requests did not reach their Pod\n", n)
	}
	h.claims()
	h.events()
	var profiled sync.WaitGroup
	profiled.Go(func() { h.profile(n) })
	fmt.Printf("processor of the idle hub: %.1f %% of one\n", h.idle(20*time.Second))
	profiled.Wait()
}

// claims measures the rate at which warm sandboxes are assigned.
func (h *hub) claims() {
	w := h.w
	if !testenv.Within(5*time.Minute, func() bool { return h.metric(`cove_pool_ready{environment="aio"}`) >= warm }) {
		fmt.Printf("claims: the pool was not full in time\n")
		return
	}
	began, before := time.Now(), h.used()
	took := durations{}
	var mu sync.Mutex
	var ids []string
	w.parallel(warm, func(int) {
		at := time.Now()
		sb, err := h.client.Create(w.b.Context(), client.CreateOptions{Timeout: -1, IdleTimeout: -1})
		if err != nil {
			w.b.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		ids, took = append(ids, sb.ID), append(took, time.Since(at))
	})
	fmt.Printf("claims                    %.0f/s, %d at once, each %v\n", float64(warm)/time.Since(began).Seconds(),
		warm, cost{took, (h.used() - before) / warm})
	w.parallel(len(ids), func(i int) {
		if err := h.client.Delete(w.b.Context(), ids[i]); err != nil {
			w.b.Error(err)
		}
	})
}

// events measures the rate of events of ten readers while sandboxes change as fast as possible.
func (h *hub) events() {
	const readers, changes = 10, 400
	var got atomic.Int64
	var wg sync.WaitGroup
	streams := make([]io.ReadCloser, readers)
	for i := range readers {
		resp, err := h.http.Get("http://hub/api/v1/events")
		if err != nil {
			h.w.b.Fatal(err)
		}
		streams[i] = resp.Body
		wg.Go(func() { count(resp.Body, "\nevent: changed", &got) })
	}
	began, before := time.Now(), h.used()
	h.w.parallel(changes, func(i int) {
		if _, err := h.client.Extend(h.w.b.Context(), h.ids[i%len(h.ids)],
			client.ExtendOptions{Timeout: float64(600 + rand.IntN(600))}); err != nil {
			h.w.b.Error(err)
		}
	})
	changed := time.Since(began)
	all := testenv.Within(time.Minute, func() bool { return got.Load() >= readers*changes })
	fmt.Printf("events                    %.0f changes/s, %.0f events/s to %d readers, all of them: %v, processor "+
		"for one change %v\n", changes/changed.Seconds(), float64(got.Load())/time.Since(began).Seconds(), readers,
		all, (h.used()-before)/changes)
	for _, s := range streams {
		s.Close()
	}
	wg.Wait()
}

// count counts occurrences of a text in a stream.
func count(r io.Reader, text string, n *atomic.Int64) {
	buf, tail := make([]byte, 64<<10), ""
	for {
		m, err := r.Read(buf)
		chunk := tail + string(buf[:m])
		n.Add(int64(strings.Count(chunk, text)))
		tail = chunk[max(0, len(chunk)-len(text)+1):]
		if err != nil {
			return
		}
	}
}

// durations are printed as percentiles.
type durations []time.Duration

func (d durations) String() string {
	if len(d) == 0 {
		return "none"
	}
	slices.Sort(d)
	at := func(q float64) time.Duration {
		return d[min(len(d)-1, int(q*float64(len(d))))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("p50 %v, p99 %v", at(0.5), at(0.99))
}
