//go:build linux

package kubernetes_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
)

const (
	token     = "the-token-of-the-hub"
	namespace = "sandboxes"
)

// apiServer simulates the API server of a cluster: it stores objects as JSON, with versions, preconditions, watches and owners,
// and its kubelet runs Pods as processes.
type apiServer struct {
	t       testing.TB
	kubelet *kubelet
	address string

	mu      sync.Mutex
	version int
	objects map[string]map[string]doc // by kind and name
	history []change
	lost    int           // versions up to this are forgotten
	news    chan struct{} // closed with every change
	cut     chan struct{} // closed to end watches
	asked   map[string]bool
	// how often a claim is found after its deletion, like a claim with a finalizer
	kept     int
	reads    map[string]int                       // how often a deleted claim was found, by name
	faults   func(r *http.Request) int            // a status to answer with; 0 is none
	after    func(r *http.Request) int            // the same, after the request was carried out
	driver   func(snapshot string) (fault string) // is called before a volume is copied
	server   *http.Server
	serving  sync.WaitGroup
	handlers sync.WaitGroup
}

type doc = map[string]any

type change struct {
	version    int
	kind, what string
	object     []byte
	labels     map[string]string
}

func newAPIServer(t testing.TB, programs map[string]string) *apiServer {
	s := &apiServer{t: t, objects: map[string]map[string]doc{}, news: make(chan struct{}), cut: make(chan struct{}),
		asked: map[string]bool{}, reads: map[string]int{}}
	s.kubelet = newKubelet(t, s, programs)
	s.start("127.78.0.1:0") // an address without other listeners, so that the port is still free after a restart
	t.Cleanup(func() { s.kubelet.close(); s.stop(); s.handlers.Wait() })
	return s
}

func (s *apiServer) start(address string) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		s.t.Error(err)
		return
	}
	s.address = l.Addr().String()
	s.server = &http.Server{Handler: s}
	s.serving.Go(func() { s.server.Serve(l) })
}

// stop closes all connections.
func (s *apiServer) stop() {
	s.server.Close()
	s.cutWatches()
	s.serving.Wait()
}

// cutWatches ends all watches, like a load balancer.
func (s *apiServer) cutWatches() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.cut)
	s.cut = make(chan struct{})
}

// forget expires all current versions for watches.
func (s *apiServer) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.history, s.lost = nil, s.version
}

// keepClaims keeps deleted claims until they were queried a few times.
func (s *apiServer) keepClaims(reads int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept = reads
}

func (s *apiServer) fail(faults, after func(r *http.Request) int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults, s.after = faults, after
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.handlers.Add(1)
	defer s.handlers.Done()
	if r.Header.Get("Authorization") != "Bearer "+token {
		refuse(w, http.StatusUnauthorized, "Unauthorized")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	at := slices.Index(parts, "namespaces")
	if at < 0 || len(parts) < at+3 || parts[at+1] != namespace {
		refuse(w, http.StatusNotFound, "no such path: "+r.URL.Path)
		return
	}
	group, kind, names := strings.Join(parts[1:at-1], "/"), parts[at+2], parts[at+3:]
	if parts[0] == "api" {
		group = ""
	}
	s.mu.Lock()
	faults, after := s.faults, s.after
	s.asked[verbOf(r, names)+" "+strings.TrimPrefix(group+"/"+resourceOf(kind, names), "/")] = true
	s.mu.Unlock()
	if faults != nil {
		if code := faults(r); code != 0 {
			refuse(w, code, "injected")
			return
		}
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		return
	}
	var code int
	var out any
	switch {
	case len(names) == 2 && names[1] == "log":
		s.kubelet.serveLog(w, names[0])
		return
	case len(names) == 2 && names[1] == "portforward":
		s.forward(w, r, names[0])
		return
	case len(names) == 0 && r.URL.Query().Get("watch") != "":
		s.watch(w, r, kind)
		return
	default:
		code, out = s.handle(r, kind, names, body)
	}
	if after != nil {
		if injected := after(r); injected != 0 {
			code, out = injected, doc{"code": injected, "message": "injected"}
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(out)
}

// verbOf returns the verb for RBAC.
func verbOf(r *http.Request, names []string) string {
	switch {
	case r.Method == http.MethodGet && r.URL.Query().Get("watch") != "":
		return "watch"
	case r.Method == http.MethodGet && len(names) == 0:
		return "list"
	}
	return map[string]string{"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}[r.Method]
}

func resourceOf(kind string, names []string) string {
	if len(names) == 2 {
		return kind + "/" + names[1]
	}
	return kind
}

func refuse(w http.ResponseWriter, code int, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(doc{"kind": "Status", "code": code, "message": message})
}

func problem(code int, format string, args ...any) (int, any) {
	return code, doc{"kind": "Status", "code": code, "message": fmt.Sprintf(format, args...)}
}

// handle executes a request.
func (s *apiServer) handle(r *http.Request, kind string, names []string, body []byte) (int, any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var in doc
	if len(body) > 0 {
		if err := json.Unmarshal(body, &in); err != nil {
			return problem(http.StatusBadRequest, "%v", err)
		}
	}
	if len(names) == 0 {
		if r.Method == http.MethodPost {
			return s.insert(kind, in)
		}
		return s.list(kind, r.URL.Query())
	}
	old, ok := s.objects[kind][names[0]]
	if !ok {
		return problem(http.StatusNotFound, "%s %q not found", kind, names[0])
	}
	switch r.Method {
	case http.MethodGet:
		s.look(kind, names[0])
		return http.StatusOK, clone(old)
	case http.MethodDelete:
		return s.remove(kind, names[0], in)
	case http.MethodPut:
	case http.MethodPatch:
		if len(names) == 2 && names[1] == "resize" {
			in = doc{"spec": resized(old, in)}
		}
		in = merge(clone(old), in).(doc)
		if len(body) > 0 && !strings.Contains(string(body), `"resourceVersion"`) {
			delete(metaOf(in), "resourceVersion")
		}
	}
	if v, _ := metaOf(in)["resourceVersion"].(string); v != "" && v != metaOf(old)["resourceVersion"] {
		return problem(http.StatusConflict, "the object has been modified")
	}
	metaOf(in)["uid"] = metaOf(old)["uid"]
	s.store(kind, "MODIFIED", in)
	return http.StatusOK, clone(in)
}

func resized(old, change doc) doc {
	spec := clone(old)["spec"].(doc)
	next := change["spec"].(doc)["containers"].([]any)[0].(doc)
	spec["containers"].([]any)[0].(doc)["resources"] = merge(spec["containers"].([]any)[0].(doc)["resources"], next["resources"])
	return spec
}

func (s *apiServer) insert(kind string, in doc) (int, any) {
	name, _ := metaOf(in)["name"].(string)
	if name == "" {
		return problem(http.StatusUnprocessableEntity, "a name is required")
	}
	if _, ok := s.objects[kind][name]; ok {
		return problem(http.StatusConflict, "%s %q already exists", kind, name)
	}
	metaOf(in)["uid"] = fmt.Sprintf("uid-%d", s.version)
	metaOf(in)["namespace"] = namespace
	if kind == "persistentvolumeclaims" {
		if source, ok := in["spec"].(doc)["dataSource"].(doc); ok {
			if err := s.kubelet.fillClaim(name, source["name"].(string)); err != nil {
				return problem(http.StatusUnprocessableEntity, "%v", err)
			}
		}
		in["status"] = doc{"phase": "Bound", "capacity": in["spec"].(doc)["resources"].(doc)["requests"]}
	}
	if kind == "pods" {
		in["status"] = doc{"phase": "Pending"}
	}
	s.store(kind, "ADDED", in)
	switch kind {
	case "pods":
		s.kubelet.run(clone(in))
	case "volumesnapshots":
		s.takeSnapshot(name, in["spec"].(doc)["source"].(doc)["persistentVolumeClaimName"].(string))
	}
	return http.StatusCreated, clone(in)
}

func (s *apiServer) remove(kind, name string, options doc) (int, any) {
	old := s.objects[kind][name]
	if kind == "pods" {
		grace, ok := options["gracePeriodSeconds"].(float64)
		if !ok {
			grace = old["spec"].(doc)["terminationGracePeriodSeconds"].(float64)
		}
		s.kubelet.kill(name, time.Duration(grace)*time.Second)
		if grace > 0 {
			if metaOf(old)["deletionTimestamp"] == nil {
				s.markDeleted(kind, old)
			}
			return http.StatusOK, clone(s.objects[kind][name])
		}
	}
	if kind == "persistentvolumeclaims" && s.kept > 0 {
		if metaOf(old)["deletionTimestamp"] == nil {
			s.markDeleted(kind, old)
		}
		return http.StatusOK, clone(s.objects[kind][name])
	}
	s.drop(kind, name)
	return http.StatusOK, clone(old)
}

// markDeleted marks an object as deleted.
func (s *apiServer) markDeleted(kind string, old doc) {
	next := clone(old)
	metaOf(next)["deletionTimestamp"] = time.Now().UTC().Format(time.RFC3339)
	s.store(kind, "MODIFIED", next)
}

// look is called when a request reads an object.
func (s *apiServer) look(kind, name string) {
	if kind != "persistentvolumeclaims" || metaOf(s.objects[kind][name])["deletionTimestamp"] == nil {
		return
	}
	if s.reads[name]++; s.reads[name] >= s.kept {
		delete(s.reads, name)
		s.drop(kind, name)
	}
}

// drop removes an object and the objects that it owns.
func (s *apiServer) drop(kind, name string) {
	old, ok := s.objects[kind][name]
	if !ok {
		return
	}
	delete(s.objects[kind], name)
	s.version++
	metaOf(old)["resourceVersion"] = strconv.Itoa(s.version)
	s.notify(kind, "DELETED", old)
	switch kind {
	case "persistentvolumeclaims":
		os.RemoveAll(s.kubelet.folder("claims", name))
	case "volumesnapshots":
		os.RemoveAll(s.kubelet.folder("snapshots", name))
	}
	for other, all := range s.objects {
		for dependent, o := range all {
			owners, _ := metaOf(o)["ownerReferences"].([]any)
			for _, ref := range owners {
				if ref.(doc)["uid"] == metaOf(old)["uid"] {
					s.remove(other, dependent, doc{})
				}
			}
		}
	}
}

// store stores an object with a new version.
func (s *apiServer) store(kind, what string, o doc) {
	s.version++
	metaOf(o)["resourceVersion"] = strconv.Itoa(s.version)
	if s.objects[kind] == nil {
		s.objects[kind] = map[string]doc{}
	}
	s.objects[kind][metaOf(o)["name"].(string)] = o
	s.notify(kind, what, o)
}

func (s *apiServer) notify(kind, what string, o doc) {
	raw, _ := json.Marshal(o)
	s.history = append(s.history, change{s.version, kind, what, raw, labelsOf(o)})
	close(s.news)
	s.news = make(chan struct{})
}

// setStatus is used by the kubelet and controllers.
func (s *apiServer) setStatus(kind, name string, status doc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.objects[kind][name]; ok {
		next := clone(old)
		next["status"] = status
		s.store(kind, "MODIFIED", next)
	}
}

// confirmEnd is used by the kubelet when a deleted Pod has ended.
func (s *apiServer) confirmEnd(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects["pods"][name]; ok && metaOf(o)["deletionTimestamp"] != nil {
		s.drop("pods", name)
	}
}

// pageLimit is smaller than requested, so that lists have several pages.
const pageLimit = 7

func (s *apiServer) list(kind string, query url.Values) (int, any) {
	names := slices.Sorted(maps.Keys(s.objects[kind]))
	items, next := []any{}, ""
	for _, name := range names {
		if o := s.objects[kind][name]; name > query.Get("continue") && selects(query.Get("labelSelector"), labelsOf(o)) {
			if len(items) == pageLimit {
				next = metaOf(items[len(items)-1].(doc))["name"].(string)
				break
			}
			items = append(items, clone(o))
		}
	}
	return http.StatusOK, doc{"metadata": doc{"resourceVersion": strconv.Itoa(s.version), "continue": next}, "items": items}
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, kind string) {
	query := r.URL.Query()
	seen, _ := strconv.Atoi(query.Get("resourceVersion"))
	s.mu.Lock()
	cut := s.cut
	s.mu.Unlock()
	send := func(what string, object any) error {
		return json.NewEncoder(w).Encode(doc{"type": what, "object": object})
	}
	for first := true; ; first = false {
		s.mu.Lock()
		news, lost, now := s.news, s.lost, s.version
		pending := slices.Clone(s.history)
		s.mu.Unlock()
		if seen < lost && first {
			send("ERROR", doc{"kind": "Status", "code": http.StatusGone, "reason": "Expired"})
			return
		}
		for _, c := range pending {
			if c.version > seen && c.kind == kind && selects(query.Get("labelSelector"), c.labels) {
				if send(c.what, json.RawMessage(c.object)) != nil {
					return
				}
			}
		}
		if seen = now; query.Get("allowWatchBookmarks") == "true" {
			send("BOOKMARK", doc{"metadata": doc{"resourceVersion": strconv.Itoa(now)}})
		}
		http.NewResponseController(w).Flush()
		select {
		case <-news:
		case <-cut:
			return
		case <-r.Context().Done():
			return
		}
	}
}

// forward serves port forwarding over a WebSocket.
func (s *apiServer) forward(w http.ResponseWriter, r *http.Request, pod string) {
	port, _ := strconv.Atoi(r.URL.Query().Get("ports"))
	ws, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v4.channel.k8s.io"}})
	if err != nil {
		return
	}
	defer ws.CloseNow()
	for _, channel := range []byte{0, 1} {
		ws.Write(r.Context(), websocket.MessageBinary, []byte{channel, byte(port), byte(port >> 8)})
	}
	inside, err := s.kubelet.dial(pod, port)
	if err != nil {
		ws.Write(r.Context(), websocket.MessageBinary, append([]byte{1}, err.Error()...))
		return
	}
	defer inside.Close()
	s.handlers.Go(func() {
		defer ws.CloseNow()
		buf := make([]byte, 16<<10)
		for {
			n, err := inside.Read(buf[1:])
			if n > 0 {
				buf[0] = 0
				if ws.Write(r.Context(), websocket.MessageBinary, buf[:n+1]) != nil {
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	for {
		_, m, err := ws.Read(r.Context())
		if err != nil || len(m) == 0 || m[0] != 0 {
			return
		}
		if _, err := inside.Write(m[1:]); err != nil {
			return
		}
	}
}

// of lists the names of the objects of a hub that belong to sandboxes and volumes.
func (s *apiServer) of(hub string, kinds ...string) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, kind := range kinds {
		for name, o := range s.objects[kind] {
			if l := labelsOf(o); l["io.cove.hub"] == hub && l["io.cove.kind"] != "hub" {
				names = append(names, kind+"/"+name)
			}
		}
	}
	slices.Sort(names)
	return names
}

// get reads an object.
func (s *apiServer) get(kind, name string) (doc, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.objects[kind][name]; ok {
		return clone(o), nil
	}
	return nil, errors.New("no such object")
}

func metaOf(o doc) doc {
	m, ok := o["metadata"].(doc)
	if !ok {
		m = doc{}
		o["metadata"] = m
	}
	return m
}

func labelsOf(o doc) map[string]string {
	out := map[string]string{}
	all, _ := metaOf(o)["labels"].(doc)
	for k, v := range all {
		out[k], _ = v.(string)
	}
	return out
}

func selects(selector string, labels map[string]string) bool {
	for _, term := range strings.Split(selector, ",") {
		if k, v, ok := strings.Cut(term, "="); ok && labels[k] != v {
			return false
		}
	}
	return true
}

func clone(o doc) doc {
	raw, _ := json.Marshal(o)
	var out doc
	json.Unmarshal(raw, &out)
	return out
}

// merge applies a JSON Merge Patch.
func merge(target, patch any) any {
	p, ok := patch.(doc)
	if !ok {
		return patch
	}
	t, ok := target.(doc)
	if !ok {
		t = doc{}
	}
	for k, v := range p {
		if v == nil {
			delete(t, k)
		} else {
			t[k] = merge(t[k], v)
		}
	}
	return t
}
