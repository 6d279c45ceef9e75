package hub

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/hub/network"
	"github.com/cove-sandbox/cove/internal/network/egress"
)

const reservedPort = "8080"

// networked is a rig whose sandboxes have a reserved port, and a server that their ports lead to.
type networked struct {
	*rig
	s    setup
	port string
}

func newNetworked(t *testing.T) *networked {
	t.Helper()
	out := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "a service inside") }))
	t.Cleanup(out.Close)
	store, err := network.Open(filepath.Join(t.TempDir(), "networks.json"))
	if err != nil {
		t.Fatal(err)
	}
	many := func(c *egress.Config) { c.MaxConns = 4096 }
	s := setup{hub: Config{changeEgress: many}, stores: stores{networks: store}, more: func(g *guestServer) {
		g.mux.HandleFunc("GET /v1/sandbox/ports/{port}", func(w http.ResponseWriter, r *http.Request) {
			port := r.PathValue("port")
			fmt.Fprintf(w, `{"success":true,"data":{"port":%s,"reserved":%v}}`, port, port == reservedPort)
		})
	}}
	_, port, err := net.SplitHostPort(out.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return &networked{newRig(t, s), s, port}
}

// must sends a request and expects a status.
func (n *networked) must(want int, method, path, body string, who ...string) reply {
	n.t.Helper()
	a := n.do(method, path, body, who...)
	if a.Status != want {
		n.t.Errorf("%s %s %s: got %d %s, want status %d", method, path, body, a.Status, a.Body, want)
	}
	return a
}

// reach requests a service at a name from a sandbox.
func (n *networked) reach(from, host string, want int) string {
	n.t.Helper()
	if !strings.Contains(host, ":") {
		host += ":" + n.port
	}
	status, text := n.program(from, "test", "http://"+host+"/")
	if status != want {
		n.t.Errorf("%s to %s: got %d %q, want %d", from, host, status, text, want)
	}
	return text
}

// tunnel opens a connection from a sandbox to a name, and returns a function that reports whether it still works.
func (n *networked) tunnel(from, host string) (works func() bool) {
	n.t.Helper()
	c, err := net.Dial("unix", n.socket(from))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { c.Close() })
	fmt.Fprintf(c, "CONNECT %s:%s HTTP/1.1\r\nHost: x\r\n\r\n", host, n.port)
	b := bufio.NewReader(c)
	res, err := http.ReadResponse(b, &http.Request{Method: "CONNECT"})
	if err != nil || res.StatusCode != 200 {
		n.t.Fatalf("%s to %s: got %v, %v, want a tunnel", from, host, res, err)
	}
	return func() bool {
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return false
		}
		res, err := http.ReadResponse(b, nil)
		if err != nil {
			return false
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err == nil
	}
}

const closedPolicy = `,"network":{"mode":"none"}`

// TestPrivateNetwork: sandboxes of one owner that are in a network reach each other by name, and no other sandbox does.
func TestPrivateNetwork(t *testing.T) {
	t.Parallel()
	n := newNetworked(t)
	anna, bert := asUser("anna"), asUser("bert")
	n.create(`{"name":"a"`+closedPolicy+`}`, anna...)
	n.create(`{"name":"db"`+closedPolicy+`}`, anna...)
	n.create(`{"name":"out"}`, anna...)
	n.create(`{"name":"spy"`+closedPolicy+`}`, bert...)
	n.reach("a", "db", 403) // off by default
	n.must(200, "POST", "/api/v1/network", `{"name":"team"}`, anna...)
	n.must(409, "POST", "/api/v1/network", `{"name":"team"}`, anna...)
	n.must(200, "POST", "/api/v1/network", `{"name":"team"}`, bert...)
	n.must(200, "PUT", "/api/v1/network/team/sandbox/a", "", anna...)
	n.reach("a", "db", 403) // not a member yet
	n.must(200, "PUT", "/api/v1/network/team/sandbox/db", "", anna...)
	n.must(200, "PUT", "/api/v1/network/team/sandbox/db", "", anna...)
	n.must(404, "PUT", "/api/v1/network/team/sandbox/db", "", bert...)
	n.must(200, "PUT", "/api/v1/network/team/sandbox/spy", "", bert...)
	for _, host := range []string{"db", "DB.", "db.team.internal", "a"} {
		if text := n.reach("a", host, 200); text != "a service inside" {
			t.Errorf("%s: got %q, want the service", host, text)
		}
	}
	for _, host := range []string{"db.other.internal", "x.db.team.internal", "db.team", "db.internal", "team", "team.internal", "internal",
		"spy", "out", n.sandbox("db").ID, "db:" + reservedPort} {
		n.reach("a", host, 403)
	}
	for _, from := range []string{"out", "spy"} {
		for _, host := range []string{"db", "db.team.internal", "a"} {
			if status, text := n.program(from, "test", "http://"+host+":"+n.port+"/"); status == 200 || strings.Contains(text, "service") {
				t.Errorf("%s to %s: got %d %q, want no connection", from, host, status, text)
			}
		}
	}
	if a := n.must(200, "GET", "/api/v1/network", "", anna...); !strings.Contains(a.Body, `"sandboxes":["a","db"]`) ||
		strings.Contains(a.Body, "spy") {
		t.Errorf("got %s, want the own network with a and db", a.Body)
	}
	n.must(404, "GET", "/api/v1/network?user=anna", "", bert...)
	if o := n.object(n.do("GET", "/api/v1/sandbox/db", "", anna...)); len(o.Networks) != 1 || o.Networks[0] != "team" {
		t.Errorf("got networks %v, want team", o.Networks)
	}
	if a := n.do("GET", "/api/v1/sandbox/a/network", "", anna...); !strings.Contains(a.Body, `"rule":"network team"`) {
		t.Errorf("got %s, want the network as the rule of connections", a.Body)
	}
	n.must(200, "POST", "/api/v1/sandbox/db/stop", "", anna...)
	n.reach("a", "db", 200) // it is woken
	n.must(200, "POST", "/api/v1/sandbox/db/fork", `{"names":["copy"]}`, anna...)
	n.reach("a", "copy", 403)
}

// TestNetworkEnds: open connections end with the membership of either side, and the network.
func TestNetworkEnds(t *testing.T) {
	t.Parallel()
	n := newNetworked(t)
	ends := map[string]func(){
		"the target leaves": func() { n.must(200, "DELETE", "/api/v1/network/team/sandbox/db", "") },
		"the client leaves": func() { n.must(200, "DELETE", "/api/v1/network/team/sandbox/a", "") },
		"the network is deleted": func() {
			n.must(200, "DELETE", "/api/v1/network/team", "")
			n.must(200, "POST", "/api/v1/network", `{"name":"team"}`)
		},
		"the client is deleted": func() { n.must(200, "DELETE", "/api/v1/sandbox/a", "") },
		"the client is paused":  func() { n.must(200, "POST", "/api/v1/sandbox/a/pause", ""); n.hub.networks.Sweep() },
	}
	for what, end := range ends {
		n.must(200, "POST", "/api/v1/network", `{"name":"team"}`)
		n.create(`{"name":"a","networks":["team"]` + closedPolicy + `}`)
		n.create(`{"name":"db","networks":["team","team"]` + closedPolicy + `}`)
		works := n.tunnel("a", "db")
		if !works() || n.openRequests("db") != 1 {
			t.Errorf("%s: got %d open connections, want one that works", what, n.openRequests("db"))
		}
		end()
		if works() {
			t.Errorf("%s: the connection still works", what)
		}
		poll(t, "the connection is counted out", func() bool { return n.openRequests("db") == 0 })
		if what != "the client is deleted" && what != "the client is paused" {
			n.reach("a", "db", 403)
		}
		n.do("DELETE", "/api/v1/sandbox/a", "")
		n.do("DELETE", "/api/v1/sandbox/db", "")
		n.must(200, "DELETE", "/api/v1/network/team", "")
	}
}

// TestNetworkOutlivesTheHub: networks and their members stay.
func TestNetworkOutlivesTheHub(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "networks.json")
	n := newNetworked(t)
	open := func() {
		store, err := network.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		n.s.stores.networks = store
		n.close()
		n.open(n.s)
	}
	open()
	n.must(200, "POST", "/api/v1/network", `{"name":"team"}`)
	n.create(`{"name":"a","networks":["team"]` + closedPolicy + `}`)
	n.create(`{"name":"db","networks":["team"]` + closedPolicy + `}`)
	n.reach("a", "db", 200)
	open()
	poll(t, "the egress proxies are open again", func() bool { return n.provider.opened() == 2 })
	n.reach("a", "db", 200)
	n.must(200, "DELETE", "/api/v1/network/team", "")
	open()
	poll(t, "the egress proxies are open again", func() bool { return n.provider.opened() == 2 })
	n.reach("a", "db", 403)
}

// TestNetworkNames: a name in a network never replaces one that programs expect elsewhere.
func TestNetworkNames(t *testing.T) {
	t.Parallel()
	n := newNetworked(t)
	for _, name := range []string{"google", "ec2", "docker", "localhost", "hub", "api", "metadata",
		"a.b", "A", "", "-a", "a b", strings.Repeat("a", 51), "../x", "<b>"} {
		n.must(400, "POST", "/api/v1/network", fmt.Sprintf(`{"name":%q}`, name))
	}
	n.must(200, "POST", "/api/v1/network", `{"name":"team"}`)
	n.create(`{"name":"a","networks":["team"]` + closedPolicy + `}`)
	for _, name := range []string{"metadata", "wpad", "instance-data", "kubernetes"} {
		n.must(400, "POST", "/api/v1/sandbox", `{"name":"`+name+`","networks":["team"]}`)
		n.create(`{"name":"` + name + `"}`)
		n.must(400, "PUT", "/api/v1/network/team/sandbox/"+name, "")
		n.reach("a", name, 403)
	}
	n.create(`{"name":"db","networks":["team"]}`)
	n.reach("a", "db", 200)
	n.must(200, "POST", "/api/v1/sandbox/metadata/rename", `{"new_name":"other"}`)
	n.must(200, "POST", "/api/v1/sandbox/db/rename", `{"new_name":"metadata"}`)
	for _, host := range []string{"db", "metadata", "metadata.team.internal", "metadata.google.internal",
		"localhost", "127.0.0.1", "169.254.169.254"} {
		n.reach("a", host, 403)
	}
	n.must(404, "POST", "/api/v1/sandbox", `{"name":"x","networks":["none"]}`)
	n.must(404, "DELETE", "/api/v1/network/none", "")
	n.must(404, "PUT", "/api/v1/network/none/sandbox/a", "")
	n.must(404, "DELETE", "/api/v1/network/team/sandbox/other", "")
}

// TestNetworkFlood: the number of connections between sandboxes is limited, and those that end make room.
func TestNetworkFlood(t *testing.T) {
	t.Parallel()
	n := newNetworked(t)
	n.must(200, "POST", "/api/v1/network", `{"name":"team"}`)
	n.create(`{"name":"a","networks":["team"]` + closedPolicy + `}`)
	n.create(`{"name":"db","networks":["team"]` + closedPolicy + `}`)
	var open []net.Conn
	refused := false
	for i := 0; i < 2000 && !refused; i++ {
		c, err := net.Dial("unix", n.socket("a"))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
		fmt.Fprintf(c, "CONNECT db:%s HTTP/1.1\r\nHost: x\r\n\r\n", n.port)
		res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: "CONNECT"})
		refused = err != nil || res.StatusCode != 200
	}
	if want := 513; len(open) != want {
		t.Errorf("got %d connections, want connection %d refused", len(open), want)
	}
	for _, c := range open {
		c.Close()
	}
	poll(t, "the connections have ended", func() bool { return n.openRequests("db") == 0 })
	n.reach("a", "db", 200)
}
