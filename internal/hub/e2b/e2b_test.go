package e2b

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/telemetry/metric"
)

// isInvalid reports whether an error blames the caller and contains want.
func isInvalid(err error, want string) bool {
	e, ok := op.AsError(err)
	return ok && e.Code == op.Invalid && strings.Contains(err.Error(), want)
}

// TestParseMetadata: clients escape pairs in addition to the query, so pairs are unescaped again.
func TestParseMetadata(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[string]string{
		"":                           {},
		"a=b":                        {"a": "b"},
		"a=b%2520c":                  {"a": "b c"}, // as SDKs send "b c", without the escapes of the URL
		"a=b&c=d":                    {"a": "b", "c": "d"},
		"k%253D=v%2526w":             {"k=": "v&w"},
		"%25C3%25BC=%25E2%2582%25AC": {"ü": "€"},
		"a":                          {"a": ""},
	} {
		got, err := parseMetadata(text)
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%q: got %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{"a=%zz", "a=%25zz", "%25z=1", "a;b=1"} {
		if got, err := parseMetadata(text); !isInvalid(err, "use key=value pairs") {
			t.Errorf("%q: got %v %v, want an error that shows the form", text, got, err)
		}
	}
}

// FuzzMetadata: any text is parsed, or rejected as an error of the caller.
func FuzzMetadata(f *testing.F) {
	f.Add("a=b%2520c&d")
	f.Fuzz(func(t *testing.T, text string) {
		if _, err := parseMetadata(text); err != nil && !isInvalid(err, "metadata") {
			t.Errorf("%q: got %v, want an invalid argument", text, err)
		}
	})
}

// TestPlace: a client can return the cursor of a page, and forged cursors are rejected.
func TestPlace(t *testing.T) {
	t.Parallel()
	created := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	at := placeOf(sandbox.Sandbox{ID: "sb-1.2", Created: created})
	if got, err := decodePlace(at.encode()); err != nil || got != at {
		t.Errorf("got %v %v, want %v", got, err, at)
	}
	later, other := placeOf(sandbox.Sandbox{ID: "a", Created: created.Add(1)}), placeOf(sandbox.Sandbox{ID: "sb-1.3", Created: created})
	if at.compare(later) >= 0 || at.compare(other) >= 0 || at.compare(at) != 0 || later.compare(at) <= 0 {
		t.Errorf("got another order, want by start, then by ID")
	}
	for _, text := range []string{"!", "eA", "LQ", "eHguYQ==", strings.Repeat("A", 4000)} {
		if got, err := decodePlace(text); !isInvalid(err, "X-Next-Token") {
			t.Errorf("%.20q: got %v %v, want an error", text, got, err)
		}
	}
}

// TestNetworkPolicy: a network is translated exactly, or rejected.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	off, on := new(false), new(true)
	for what, c := range map[string]struct {
		network  *Network
		internet *bool
		want     *environment.Policy
	}{
		"nothing":            {nil, nil, nil},
		"internet":           {nil, on, nil},
		"no internet":        {nil, off, &environment.Policy{Mode: "none"}},
		"empty":              {&Network{}, nil, nil},
		"empty, no internet": {&Network{}, off, &environment.Policy{Mode: "none"}},
		"deny all":           {&Network{Deny: []string{"0.0.0.0/0"}}, nil, &environment.Policy{Mode: "none"}},
		"deny all of IPv6":   {&Network{Deny: []string{"::/0"}}, nil, &environment.Policy{Mode: "none"}},
		"exceptions": {&Network{Deny: []string{"0.0.0.0/0"}, Allow: []string{"a.example"}}, nil,
			&environment.Policy{Mode: "allow", Allow: []string{"a.example"}}},
		"exceptions from nothing": {&Network{Allow: []string{"a.example"}}, off,
			&environment.Policy{Mode: "allow", Allow: []string{"a.example"}}},
		"deny one address": {&Network{Deny: []string{"192.0.2.7", "2001:db8::/32"}}, nil,
			&environment.Policy{Mode: "allow", Allow: []string{"!192.0.2.7", "!2001:db8::/32", "*", "0.0.0.0/0", "::/0"}}},
		"allow part of a range": {&Network{Deny: []string{"192.0.2.0/24"}, Allow: []string{"192.0.2.7"}}, nil,
			&environment.Policy{Mode: "allow", Allow: []string{"192.0.2.7", "!192.0.2.0/24", "*", "0.0.0.0/0", "::/0"}}},
		"allow wins":               {&Network{Deny: []string{"0.0.0.0/0"}, Allow: []string{"0.0.0.0/0"}}, nil, &environment.Policy{Mode: "open"}},
		"allowed is open anyway":   {&Network{Allow: []string{"a.example"}}, nil, nil},
		"empty rules mean nothing": {&Network{Rules: json.RawMessage("{}"), Proxy: json.RawMessage("null"), DNS: []string{}}, nil, nil},
		"name servers": {&Network{Deny: []string{"0.0.0.0/0"}, Allow: []string{"a.example", "1.1.1.1"}, DNS: []string{"1.1.1.1", "8.8.8.8"}}, nil,
			&environment.Policy{Mode: "allow", Allow: []string{"a.example", "1.1.1.1", "8.8.8.8"}}},
		"name servers without names": {&Network{Deny: []string{"0.0.0.0/0"}, Allow: []string{"192.0.2.7"}, DNS: []string{"1.1.1.1"}}, nil,
			&environment.Policy{Mode: "allow", Allow: []string{"192.0.2.7"}}},
	} {
		got, err := c.network.policy(c.internet)
		if err != nil || (got == nil) != (c.want == nil) || got != nil && (got.Mode != c.want.Mode || !slices.Equal(got.Allow, c.want.Allow)) {
			t.Errorf("%s: got %+v %v, want %+v", what, got, err, c.want)
		}
	}
	many := slices.Repeat([]string{"192.0.2.1"}, maxServers+1)
	for want, network := range map[string]*Network{
		"use at most 10":          {DNS: many},
		"use an IPv4 address":     {DNS: []string{"2001:db8::1"}},
		"network.maskRequestHost": {Mask: "a.example/x"},
		"network.egressProxy":     {Proxy: json.RawMessage(`{"address":"proxy.example:1080"}`)},
		"network.dnsServers":      {DNS: []string{"dns.example"}},
		"network.denyOut":         {Deny: []string{"a.example"}},
	} {
		if got, err := network.policy(nil); !isInvalid(err, want) {
			t.Errorf("%s: got %+v %v, want an error that names it", want, got, err)
		}
	}
}

// TestMask: a mask is a host name, with or without a port.
func TestMask(t *testing.T) {
	t.Parallel()
	for mask, valid := range map[string]bool{
		"": true, "localhost": true, "app.example": true, "app.example:8080": true, "app.example:${PORT}": true,
		"${PORT}-app.example": true, "my_app": true, "localhost:": false, ":80": false, "a b": false, "a\r\nX-Evil: 1": false,
		"a/b": false, "a:80:80": false, "a:99999": false, "user@host": false, "ü.example": false, strings.Repeat("a", 254): false,
	} {
		if err := (&Network{Mask: mask}).checkMask(); valid && err != nil || !valid && !isInvalid(err, "network.maskRequestHost") {
			t.Errorf("%q: got %v, want valid %v", mask, err, valid)
		}
	}
}

// TestRuleHeaders: the headers of rules are translated exactly, or rejected.
func TestRuleHeaders(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]map[field]string{
		"": {}, "null": {}, "{}": {}, `{"a.example":[]}`: {}, `{"a.example":[{}]}`: {}, `{"a.example":[{"transform":null}]}`: {},
		`{"A.example":[{"transform":{"headers":{"x-key":"1","X-Other":"2"}}},{"transform":{"headers":{"X-Key":"3"}}}]}`: {
			{"a.example", "X-Key"}: "3", {"a.example", "X-Other"}: "2"},
	} {
		got, err := (&Network{Rules: json.RawMessage(text)}).headers()
		if err != nil || !maps.Equal(got, want) {
			t.Errorf("%s: got %v %v, want %v", text, got, err, want)
		}
	}
	for _, text := range []string{`[]x`, `[1]`, `"a"`, `{"a.example":{}}`, `{"a.example":[1]}`, `{"a.example":[{"block":true}]}`,
		`{"a.example":[{"transform":{"path":"/"}}]}`, `{"a.example":[{"transform":{"headers":{"A":1}}}]}`,
		`{"a.example":[{"transform":{"headers":{"A":"Bearer ${e2b.identity.tokens.aws}"}}}]}`} {
		if got, err := (&Network{Rules: json.RawMessage(text)}).headers(); !isInvalid(err, "network.rules") {
			t.Errorf("%s: got %v %v, want an error that names the field", text, got, err)
		}
	}
}

// TestNetworkOf: the network in a response translates back to the same policy.
func TestNetworkOf(t *testing.T) {
	t.Parallel()
	for _, mode := range []sandbox.NetworkMode{sandbox.NetworkNone, sandbox.NetworkAllow, sandbox.NetworkOpen} {
		spec := sandbox.Spec{}
		spec.Network.Mode = mode
		if mode == sandbox.NetworkAllow {
			spec.Network.Allow = []string{"a.example"}
		}
		got, err := networkOf(spec).policy(nil)
		if err != nil || mode != sandbox.NetworkOpen && got.Mode != string(mode) || mode == sandbox.NetworkOpen && got != nil {
			t.Errorf("%s: got %+v %v, want the same mode", mode, got, err)
		}
	}
	denies := &Network{Deny: []string{"192.0.2.0/24"}, Allow: []string{"192.0.2.7"}}
	policy, err := denies.policy(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := networkOf(sandbox.Spec{Network: sandbox.Network{Mode: sandbox.NetworkAllow, Allow: policy.Allow}})
	if !slices.Equal(got.Deny, denies.Deny) || !slices.Equal(got.Allow, denies.Allow) {
		t.Errorf("denied addresses: got %+v, want %+v", got, denies)
	}
	for _, c := range []struct {
		network sandbox.Network
		open    bool
	}{
		{sandbox.Network{Mode: sandbox.NetworkOpen}, true},
		{sandbox.Network{Mode: sandbox.NetworkAllow, Allow: policy.Allow}, true},
		{sandbox.Network{Mode: sandbox.NetworkAllow, Allow: []string{"192.0.2.7"}}, false},
		{sandbox.Network{Mode: sandbox.NetworkAllow}, false},
		{sandbox.Network{Mode: sandbox.NetworkNone}, false},
	} {
		if got := isOpen(c.network); got != c.open {
			t.Errorf("%+v: got open %v, want %v", c.network, got, c.open)
		}
	}
	var masked sandbox.Spec
	naming.Annotate(&masked, naming.AnnotationMask, "app.example:${PORT}")
	if n := networkOf(masked); n == nil || n.Mask != "app.example:${PORT}" {
		t.Errorf("masked host: got %+v, want the mask", n)
	}
	var closed sandbox.Spec
	naming.Annotate(&closed, naming.AnnotationClosed, "true")
	if n := networkOf(closed); n == nil || n.Public == nil || *n.Public {
		t.Errorf("closed ports: got %+v, want allowPublicTraffic false", n)
	}
}

// limiting is a provider that limits CPU and memory, but no disks.
type limiting struct{ sandbox.Provider }

func (limiting) Abilities() sandbox.Abilities {
	return sandbox.Abilities{Limits: []string{"cpu", "memory"}, MaxCPU: 8000}
}

// TestListed: a listed sandbox has all fields that clients require, even if some values are unknown.
func TestListed(t *testing.T) {
	t.Parallel()
	s := New(Config{Provider: limiting{}, Sandboxes: lifecycle.New(lifecycle.Config{Provider: limiting{}, Metrics: metric.New()})})
	created := time.Date(2026, 1, 2, 3, 4, 5, 0, time.FixedZone("", 3600))
	sb := sandbox.Sandbox{ID: "sb-0123456789abcdef", State: sandbox.Stopped, Created: created, Spec: sandbox.Spec{Environment: "aio"}}
	sb.Spec.Resources = sandbox.Resources{CPULimit: 1500, MemoryLimit: 512 << 20, Disk: 1 << 30}
	got := s.listed(sb)
	if got.TemplateID != "aio" || got.SandboxID != "sb0123456789abcdef" || got.State != "paused" || got.CPUs != 2 || got.MemoryMB != 512 ||
		got.DiskMB != 0 || !got.StartedAt.Equal(created) || got.StartedAt.Location() != time.UTC || !got.EndAt.After(created.AddDate(5, 0, 0)) {
		t.Errorf("got %+v, want it as a client reads it", got)
	}
	sb.State = sandbox.Running
	sb.Spec.Resources.CPULimit = 0
	naming.Annotate(&sb.Spec, naming.AnnotationTemplate, "base")
	naming.Annotate(&sb.Spec, naming.AnnotationMetadata, `{"a":"b"}`)
	if got = s.listed(sb); got.TemplateID != "base" || got.State != "running" || got.CPUs != 8 ||
		!maps.Equal(got.Metadata, map[string]string{"a": "b"}) {
		t.Errorf("got %+v, want the client's template and metadata", got)
	}
	naming.Annotate(&sb.Spec, naming.AnnotationMetadata, `{{`)
	if got = s.listed(sb); got.Metadata != nil {
		t.Errorf("broken metadata: got %v, want none", got.Metadata)
	}
}

// TestSnapshotNames: names with underscores are valid names of the hub, and clients get them back.
func TestSnapshotNames(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a", "snap-test_1", "a_b__c", "x5f", "a-x5-f_b",
		"_a", "a_", "_a_", "__a", "a__", "_", "__", "0_a", "a_0", "0_0", "00_0", "_0", "0"} {
		own := ownName(name)
		if err := sandbox.CheckName(own); err != nil || clientName(own) != name {
			t.Errorf("%q: got %q, %q and %v, want a valid name for it", name, own, clientName(own), err)
		}
	}
}
