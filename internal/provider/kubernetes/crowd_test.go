//go:build linux

package kubernetes_test

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// testCrowd: each of many concurrent creates gets a different Pod with the requested settings, and each Pod of the warm pool is
// used once.
func testCrowd(t *testing.T) {
	const warm, crowd = 20, 24
	bin := t.TempDir()
	testenv.Build(t, map[string]string{bin + "/cove": "../../../cmd/cove", bin + "/aio": "../../../cmd/aio"})
	s := newAPIServer(t, map[string]string{"aio": bin + "/aio", "cove-container": programs["cove-container"]})
	s.kubelet.installer(t)
	state, err := os.MkdirTemp("", "cove-hub-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(state) })
	h := launchHub(t, s, bin, state, "listen.sock", "--pool", fmt.Sprint(warm))
	h.connect("")
	for n := 5; n <= warm; n += 5 { // each step within the timeout of Poll
		testenv.Poll(t, fmt.Sprintf("%d are warm", n), func() bool { return h.warm() >= n })
	}
	pool := s.of("cove", "pods")
	var mu sync.Mutex
	var work sync.WaitGroup
	owner := map[string]string{} // the name of a sandbox, by its Pod
	for i := range crowd {
		work.Go(func() {
			name := fmt.Sprintf("n-%d", i)
			sb, err := h.Create(t.Context(), client.CreateOptions{Name: name, Env: map[string]string{"WHOSE": name}})
			if err != nil {
				t.Error(err)
				return
			}
			h.wantOutput(name, "echo $WHOSE", name+"\n")
			mu.Lock()
			defer mu.Unlock()
			if other, twice := owner["pods/"+sb.ID]; twice {
				t.Errorf("%s was assigned to %s and %s", sb.ID, other, name)
			}
			owner["pods/"+sb.ID] = name
		})
	}
	work.Wait()
	given := 0
	for _, pod := range pool {
		if owner[pod] != "" {
			given++
		}
	}
	if len(owner) != crowd || given != warm {
		t.Errorf("got %d Pods, %d of them from the warm pool; want %d and %d", len(owner), given, crowd, warm)
	}
	for pod, name := range owner {
		testenv.Poll(t, "the Pod is labelled with its new name", func() bool {
			o, err := s.get("pods", strings.TrimPrefix(pod, "pods/"))
			return err == nil && metaOf(o)["annotations"].(doc)["io.cove.name"] == name
		})
	}
}

// warm is how many sandboxes of the default environment are ready.
func (h *realHub) warm() (n int) {
	_, after, _ := strings.Cut(h.metrics(), `cove_pool_ready{environment="aio"} `)
	fmt.Sscan(after, &n)
	return n
}
