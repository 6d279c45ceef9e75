package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// DiagnoseIn is the input of Diagnose.
type DiagnoseIn struct {
	URL string `query:"url" doc:"URL, or host with optional port"`
}

// Diagnosis explains the route of a URL.
type Diagnosis struct {
	URL       string   `json:"url"`
	Mapping   *Mapping `json:"matched_mapping"`
	Target    *string  `json:"resolved_target" doc:"Address of the target"`
	Reachable bool     `json:"target_reachable"`
	Route     string   `json:"route" doc:"mapping, upstream, bypass or direct"`
	Rule      string   `json:"rule" doc:"Why this route was selected"`
	Error     *string  `json:"error" doc:"Why the target is not reachable"`
	Egress    *Egress  `json:"egress,omitempty" doc:"Decision of the hub's egress proxy; null if it was not consulted"`
}

// Egress is the decision of the hub's egress proxy.
type Egress struct {
	Verdict string     `json:"verdict" enum:"allowed,denied,failed" doc:"failed: allowed, but not reachable"`
	Rule    string     `json:"rule" doc:"Rule of the egress policy that decides; empty if none matches"`
	Reason  string     `json:"reason" doc:"Why the connection was denied or failed"`
	Fix     string     `json:"fix" doc:"What the owner of the sandbox can do"`
	Denied  *time.Time `json:"denied" doc:"Time of the latest denied connection to this host and port"`
	Program string     `json:"program" doc:"Program of that connection, by the name that it sent"`
}

// Diagnose explains the route of a URL and tries to connect.
func (s *Service) Diagnose(ctx context.Context, in DiagnoseIn) (Diagnosis, error) {
	u, err := url.Parse(in.URL)
	bare := err != nil || u.Host == ""
	if bare {
		u, err = url.Parse("http://" + in.URL)
	}
	if err != nil || u.Hostname() == "" || u.Scheme != "http" && u.Scheme != "https" && u.Scheme != "ws" && u.Scheme != "wss" {
		return Diagnosis{}, op.Errorf(op.Invalid, "invalid URL %.200q; use http://host/path or https://host/path", in.URL)
	}
	scheme := map[string]string{"http": "http", "ws": "http", "https": "https", "wss": "https"}[u.Scheme]
	host, port, err := splitTarget(u.Host, map[string]string{"http": "80", "https": "443"}[scheme])
	if err != nil {
		return Diagnosis{}, op.Errorf(op.Invalid, "invalid URL %.200q: %w", in.URL, err)
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	out := Diagnosis{URL: in.URL}
	var c net.Conn
	if m := s.rules.Load().match(scheme, host, port, u.Path); m != nil {
		target := net.JoinHostPort(m.toHost, strconv.Itoa(m.toPort))
		out.Mapping, out.Route, out.Rule, out.Target = new(s.describe(*m)), "mapping", "mapped by "+m.source, new(target+m.toPath)
		c, err = s.dial.dialMapped(ctx, "tcp", target)
	} else {
		out.Route, out.Rule = s.dial.routeOf(host)
		out.Target = new(net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case out.Route == "upstream":
			out.Target, out.Rule = new(s.rules.Load().upstream.describe().Addr), "all unmapped hosts use the upstream proxy"
		case out.Route == "direct" && s.cfg.Egress != nil:
			out.Rule = "no upstream proxy is set; the egress proxy decides"
		case out.Route == "direct":
			out.Rule = "no upstream proxy is set"
		}
		if out.Route != "upstream" && s.cfg.Egress != nil {
			if bare && u.Port() == "" {
				port = 443 // most programs use HTTPS for a host
				out.Target = new(net.JoinHostPort(host, strconv.Itoa(port)))
			}
			if out.Egress = s.dial.askEgress(ctx, host, port); out.Egress != nil {
				out.Reachable = out.Egress.Verdict == "allowed"
				if !out.Reachable {
					out.Error = &out.Egress.Reason
				}
				return out, nil
			}
		}
		c, err = s.dial.tunnel(ctx, host, port, nil)
	}
	if err != nil {
		_, text := explain(err)
		out.Error = &text
		return out, nil
	}
	c.Close()
	out.Reachable = true
	return out, nil
}

// The request that the egress proxy explains its decision to. It answers only with the header, which web pages cannot set.
const (
	diagnosePath   = "/diagnose"
	diagnoseHeader = "Cove-Diagnose"
)

// askEgress returns the decision of the hub's egress proxy about a host. It returns nil if the hub cannot explain it.
func (d *dialer) askEgress(ctx context.Context, host string, port int) *Egress {
	t := http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.cfg.Egress(ctx) },
		DisableKeepAlives: true, MaxResponseHeaderBytes: maxHeader}
	query := url.Values{"host": {host}, "port": {strconv.Itoa(port)}}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, egressURL.String()+diagnosePath+"?"+query.Encode(), nil)
	if err != nil {
		return nil
	}
	r.Header.Set(diagnoseHeader, "1")
	res, err := t.RoundTrip(r)
	if err != nil {
		return nil
	}
	defer res.Body.Close()
	var out Egress
	if res.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(res.Body, maxReply)).Decode(&out) != nil {
		return nil
	}
	return &out
}

// Health is the state of the proxy.
type Health struct {
	Healthy         bool     `json:"healthy"`
	ProxyAlive      bool     `json:"gost_alive" doc:"The proxy accepts connections"`
	RouterAlive     bool     `json:"nginx_alive" doc:"The proxy routes mapped requests"`
	Consistent      bool     `json:"config_consistent"`
	Inconsistencies []string `json:"inconsistencies"`
}

// Health checks the proxy.
func (s *Service) Health(ctx context.Context, _ op.None) (Health, error) {
	out := Health{RouterAlive: s.life.Err() == nil, Inconsistencies: []string{}}
	if s.cfg.Address != nil {
		d := net.Dialer{Timeout: 2 * time.Second}
		if c, err := d.DialContext(ctx, "tcp", s.cfg.Address()); err == nil {
			c.Close()
			out.ProxyAlive = true
		}
	}
	for _, m := range s.rules.Load().mappings {
		if s.cfg.Deny(m.toPort) {
			out.Inconsistencies = append(out.Inconsistencies, fmt.Sprintf("mapping %s: port %d is reserved for the sandbox", m.source, m.toPort))
		}
	}
	out.Consistent = len(out.Inconsistencies) == 0
	out.Healthy = out.ProxyAlive && out.RouterAlive && out.Consistent
	return out, nil
}
