package subpath

import (
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
)

func isServer(u *url.URL) bool { return u.Host == "server" }

var (
	plain = Site{Host: "hub.example", Path: "/sandbox/a", IsServer: isServer}
	// known is behind a proxy with its own prefix, and adds only the last part itself.
	known = Site{Host: "hub.example", Path: "/hub/absproxy/3000", Known: "/absproxy/3000", IsServer: isServer}
	root  = Site{Host: "hub.example", IsServer: isServer}
)

func TestLocation(t *testing.T) {
	for _, c := range []struct {
		site        Site
		given, want string
	}{
		{plain, "/login?next=/x#y", "/sandbox/a/login?next=/x#y"},
		{plain, "/sandbox/a/login", "/sandbox/a/login"},
		{plain, "/sandbox/a?x", "/sandbox/a?x"},
		{plain, "/sandbox/ab", "/sandbox/a/sandbox/ab"},
		{plain, "relative/x", "relative/x"},
		{plain, "../up", "../up"},
		{plain, "", ""},
		{plain, "http://server", "/sandbox/a/"},
		{plain, "http://server/x?y", "/sandbox/a/x?y"},
		{plain, "https://HUB.example/x", "/sandbox/a/x"},
		{plain, "https://user:secret@hub.example/x", "/sandbox/a/x"},
		{plain, "http://server//other.example/", "/sandbox/a/other.example/"},
		{plain, "https://other.example/x", "https://other.example/x"},
		{plain, "//other.example/x", "//other.example/x"},
		{plain, "//server/x", "/sandbox/a/x"},
		{plain, "http://a b/%zz", "http://a b/%zz"},
		{plain, "/kept%2Fescaped", "/sandbox/a/kept%2Fescaped"},
		{known, "/x", "/hub/absproxy/3000/x"},
		{known, "/absproxy/3000/x", "/hub/absproxy/3000/x"},
		{known, "/hub/absproxy/3000/x", "/hub/absproxy/3000/x"},
		{known, "/absproxy/30001/x", "/hub/absproxy/3000/absproxy/30001/x"},
		{root, "/x", "/x"},
		{root, "http://server/x", "/x"},
		{Site{Host: "h", Path: "/p"}, "http://server/x", "http://server/x"},
	} {
		if got := c.site.Location(c.given); got != c.want {
			t.Errorf("Location(%q) below %q: got %q, want %q", c.given, c.site.Path, got, c.want)
		}
	}
}

func TestCookie(t *testing.T) {
	for _, c := range []struct {
		site        Site
		given, want string
	}{
		{plain, "k=v", "k=v; Path=/sandbox/a/"},
		{plain, "k=v; Path=/; HttpOnly; Domain=hub.example", "k=v; HttpOnly; Path=/sandbox/a/"},
		{plain, "k=v; path=/sub; SameSite=Lax", "k=v; SameSite=Lax; Path=/sandbox/a/sub"},
		{plain, `k=v; PATH="/sub"`, "k=v; Path=/sandbox/a/sub"},
		{plain, "k=v; Path=relative", "k=v; Path=/sandbox/a/"},
		{plain, "k=v; Path=/sandbox/a/deep", "k=v; Path=/sandbox/a/deep"},
		{known, "k=v; Path=/absproxy/3000/", "k=v; Path=/hub/absproxy/3000/"},
	} {
		if got := c.site.Cookie(c.given); got != c.want {
			t.Errorf("Cookie(%q) below %q: got %q, want %q", c.given, c.site.Path, got, c.want)
		}
	}
}

func TestHeaders(t *testing.T) {
	h := http.Header{
		"Location":                  {"/x"},
		"Content-Location":          {"http://server/y"},
		"Service-Worker-Allowed":    {"/"},
		"Clear-Site-Data":           {`"*"`},
		"Strict-Transport-Security": {"max-age=1"},
		"Set-Cookie":                {"own_1=stolen", "k=v", " own_2=stolen", "l=w; Path=/l"},
		"Content-Type":              {"text/html"},
	}
	plain.RewriteLocations(h)
	plain.Confine(h)
	DropCookies(h, "own_")
	want := http.Header{
		"Location":               {"/sandbox/a/x"},
		"Content-Location":       {"/sandbox/a/y"},
		"Service-Worker-Allowed": {"/sandbox/a/"},
		"Set-Cookie":             {"k=v; Path=/sandbox/a/", "l=w; Path=/sandbox/a/l"},
		"Content-Type":           {"text/html"},
	}
	if !reflect.DeepEqual(h, want) {
		t.Errorf("got %v, want %v", h, want)
	}
	h = http.Header{"Set-Cookie": {"own_1=stolen"}}
	if DropCookies(h, "own_"); len(h) != 0 {
		t.Errorf("got %v, want no header", h)
	}
}

func TestSetPath(t *testing.T) {
	for given, want := range map[string]string{
		"":           "http://server/",
		"/a%2Fb//c":  "http://server/a%2Fb//c",
		"/%7Euser/.": "http://server/%7Euser/.",
	} {
		u := &url.URL{Scheme: "http", Host: "server"}
		if SetPath(u, given); u.String() != want {
			t.Errorf("SetPath(%q): got %q, want %q", given, u, want)
		}
	}
}

// A server cannot redirect a caller to another host with an address that looks like its own.
func FuzzLocation(f *testing.F) {
	for _, s := range []string{"/x", "//x", "http://server//x/", "http://server/./x", "http://server?x",
		"http://hub.example#/", "\\\\x", "http:x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, v string) {
		got := plain.Location(v)
		if u, err := url.Parse(v); err == nil && (u.Host == "server" || strings.EqualFold(u.Host, "hub.example")) && !contains(plain.Path, got) {
			t.Errorf("Location(%q): got %q, want it below %q", v, got, plain.Path)
		}
	})
}
