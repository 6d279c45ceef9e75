package outbound

import (
	"regexp"

	"github.com/cove-sandbox/cove/internal/network/egress"
)

// value is a secret value that programs inside never see.
type value string

func (v value) Reveal() string { return string(v) }
func (value) String() string   { return "[hidden]" }

// testRequests: credentials and rules for requests apply to programs without a proxy.
func testRequests(o *outside) {
	const secret, refused = "Bearer 5f1c9e77a0", "does not allow|denied|rule"
	ours := o.authority()
	key := egress.Credential{Host: "api.ok.test", Header: "Authorization", Value: value(secret)}
	o.serve(egress.Config{Authority: ours, Credentials: []egress.Credential{key}},
		"api.ok.test", "GET rule.ok.test/v1/*", "other.ok.test")
	o.must("cat >/tmp/ours.pem <<'E'\n" + string(ours.PEM()) + "E\n")
	env := o.trust()
	for _, c := range []struct{ what, command, want string }{
		{"a credential", "curl -sS --cacert /tmp/ours.pem https://api.ok.test/headers", secret},
		{"a credential of another host", "curl -sS https://other.ok.test/headers", `^\{[^}]*\}\s*$`},
		{"the name of another host", "curl -sSk --connect-to ::other.ok.test:443 https://api.ok.test/headers", "rror|reset|closed"},
		{"a host without the name", "curl -sSk --connect-to ::other.ok.test:443 https://192.0.2.1/headers", "rror|reset|closed"},
		{"an allowed request", "curl -sS --cacert /tmp/ours.pem https://rule.ok.test/v1/a", "^web rule.ok.test$"},
		{"another method", "curl -sS --cacert /tmp/ours.pem -d x https://rule.ok.test/v1/a", refused},
		{"another path", "curl -sS --cacert /tmp/ours.pem https://rule.ok.test/v2/a", refused},
		{"a path with two readings", "curl -sS --path-as-is --cacert /tmp/ours.pem https://rule.ok.test/v1/../v2/a", refused},
		{"a request without TLS", "curl -sS -o /dev/null -w '%{http_code}' -d x http://rule.ok.test/v1/a", "403|000"},
	} {
		out, err := o.Shell("export " + env + "; " + c.command + " 2>&1")
		if err != nil || !regexp.MustCompile(c.want).MatchString(out) {
			o.Errorf("%s: got %q, %v, want %q", c.what, out, err, c.want)
		}
		if c.what != "a credential" && regexp.MustCompile("5f1c9e77a0|^web [^r]").MatchString(out) {
			o.Errorf("%s: got %q", c.what, out)
		}
	}
}
