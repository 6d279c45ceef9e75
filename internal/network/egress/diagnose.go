package egress

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// DiagnosePath is the path at which the proxy explains its decision about the host and port in the
// query. A web page cannot request it, because it cannot set DiagnoseHeader.
const (
	DiagnosePath   = "/diagnose"
	DiagnoseHeader = "Cove-Diagnose"
)

// Diagnosis explains whether a sandbox can connect to a host.
type Diagnosis struct {
	Verdict string `json:"verdict"` // allowed, denied, failed
	Rule    string `json:"rule"`    // that decides; empty: another reason
	Reason  string `json:"reason"`
	Fix     string `json:"fix"`
	Address string `json:"address"`
	// Denied is the latest denied connection to the host, by the program that it names.
	Denied  *time.Time `json:"denied,omitempty"`
	Program string     `json:"program,omitempty"`
}

// try connects to a host and disconnects. Unlike open, it does not wait for approval.
func try(ctx context.Context, p *Proxy, host string, port int, rec *Record) error {
	var remote *link
	var err error
	if to, ok := p.peers.find(ctx, host); ok {
		remote, err = p.peers.dial(ctx, to, host, port, rec)
	} else if _, err = p.decide(host, port); err == nil {
		remote, err = p.dial(ctx, host, port, rec)
	}
	if err == nil {
		remote.Close()
	}
	return err
}

// diagnose connects to a host and explains the result.
func (p *Proxy) diagnose(w http.ResponseWriter, r *http.Request) {
	rec := &Record{}
	host, port, err := split(r.URL.Query().Get("host"), r.URL.Query().Get("port"))
	if err == nil {
		rec.Host, rec.Port = host, port
		err = try(r.Context(), p, host, port, rec)
	}
	out := Diagnosis{Verdict: Allowed}
	switch {
	case err == nil:
	case Denied(err):
		rec.deny(err)
		out.Verdict, out.Reason, out.Fix = Refused, rec.Reason, rec.Fix
	default:
		out.Verdict, out.Reason = Failed, err.Error()
	}
	out.Rule, out.Address = rec.Rule, rec.Address
	for _, old := range p.Records() {
		if old.Verdict == Refused && old.Host == rec.Host && old.Port == rec.Port {
			out.Denied, out.Program = new(old.Time.UTC()), old.Program
		}
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_ = json.NewEncoder(w).Encode(out)
}
