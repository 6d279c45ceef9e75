package proxy

import (
	"context"
	"fmt"
	"net"
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
}

// Diagnose explains the route of a URL and tries to connect.
func (s *Service) Diagnose(ctx context.Context, in DiagnoseIn) (Diagnosis, error) {
	u, err := url.Parse(in.URL)
	if err != nil || u.Host == "" {
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
