package ship

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"
)

const sendTimeout = 10 * time.Second

// parse returns the receiver at a URL: syslog (RFC 5424) over a unix socket, UDP or TCP,
// an OpenTelemetry collector (OTLP logs over HTTP), or a file of JSON lines.
func parse(to string, headers map[string]string) (sink, error) {
	u, err := url.Parse(to)
	if err != nil {
		return nil, fmt.Errorf("receiver of the audit log %q: %w", to, err)
	}
	switch {
	case u.Scheme == "syslog" && u.Host == "" && u.Path != "":
		return &syslog{network: "unixgram", address: u.Path, host: hostname()}, nil
	case u.Scheme == "syslog+udp" && u.Port() != "":
		return &syslog{network: "udp", address: u.Host, host: hostname()}, nil
	case u.Scheme == "syslog+tcp" && u.Port() != "":
		return &syslog{network: "tcp", address: u.Host, host: hostname()}, nil
	case (u.Scheme == "http" || u.Scheme == "https") && u.Host != "":
		return &collector{url: to, headers: headers, client: newClient()}, nil
	case u.Scheme == "file" && u.Host == "" && u.Path != "":
		return &file{u.Path}, nil
	}
	return nil, fmt.Errorf("receiver of the audit log %q: %w", to, errScheme)
}

// newClient returns a client that does not follow redirects, which could send a key in the headers to
// another host, and turn a POST into a GET.
func newClient() *http.Client {
	return &http.Client{Timeout: sendTimeout, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// fingerprint identifies a receiver in a file name without its credentials.
func fingerprint(to string) string {
	sum := sha256.Sum256([]byte(to))
	return hex.EncodeToString(sum[:8])
}

// syslog speaks RFC 5424. Over TCP messages are framed by their length (RFC 6587).
type syslog struct {
	network, address, host string
	conn                   net.Conn
}

// priority is facility 13 (log audit) with severity notice.
const priority = 13*8 + 5

func (s *syslog) send(ctx context.Context, lines []Line) error {
	if s.conn == nil {
		d := net.Dialer{Timeout: sendTimeout}
		c, err := d.DialContext(ctx, s.network, s.address)
		if err != nil {
			return err
		}
		s.conn = c
	}
	for _, l := range lines {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		message := fmt.Appendf(nil, "<%d>1 %s %s cove %d audit - ", priority, l.Time.UTC().Format(time.RFC3339Nano), s.host, os.Getpid())
		message = append(message, b...)
		if s.network == "tcp" {
			message = append(strconv.AppendInt(nil, int64(len(message)), 10), append([]byte{' '}, message...)...)
		}
		s.conn.SetWriteDeadline(time.Now().Add(sendTimeout))
		if _, err := s.conn.Write(message); err != nil {
			s.close()
			return err
		}
	}
	return nil
}

func (s *syslog) close() {
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// file appends JSON lines. It is reopened for each batch, so that it can be rotated.
type file struct{ path string }

func (f *file) send(_ context.Context, lines []Line) error {
	var b bytes.Buffer
	for _, l := range lines {
		if err := json.NewEncoder(&b).Encode(l); err != nil {
			return err
		}
	}
	out, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	_, err = out.Write(b.Bytes())
	if closed := out.Close(); err == nil {
		err = closed
	}
	return err
}

func (f *file) close() {}

// collector sends OTLP logs as JSON.
type collector struct {
	url     string
	headers map[string]string
	client  *http.Client
}

type text struct {
	String string `json:"stringValue"`
}

type attribute struct {
	Key   string `json:"key"`
	Value text   `json:"value"`
}

func attributes(pairs ...string) (out []attribute) {
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			out = append(out, attribute{pairs[i], text{pairs[i+1]}})
		}
	}
	return out
}

func (c *collector) send(ctx context.Context, lines []Line) error {
	type record struct {
		Time       string      `json:"timeUnixNano"`
		Severity   string      `json:"severityText"`
		Body       text        `json:"body"`
		Attributes []attribute `json:"attributes"`
	}
	var records []record
	for _, l := range lines {
		b, err := json.Marshal(l)
		if err != nil {
			return err
		}
		records = append(records, record{strconv.FormatInt(l.Time.UnixNano(), 10), "INFO", text{string(b)},
			attributes("cove.audit.log", l.Name, "cove.tenant", l.Tenant, "cove.op", l.Op, "cove.sandbox", l.Sandbox,
				"cove.audit.seq", strconv.FormatUint(l.Seq, 10), "cove.audit.hash", l.Hash)})
	}
	type m map[string]any
	body, err := json.Marshal(m{"resourceLogs": []m{{
		"resource":  m{"attributes": attributes("service.name", "cove-hub")},
		"scopeLogs": []m{{"scope": m{"name": "audit"}, "logRecords": records}},
	}}})
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, c.url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	for name, value := range c.headers {
		r.Header.Set(name, value)
	}
	res, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(res.Body, 64<<10)); err != nil {
		return err
	}
	if to := res.Header.Get("Location"); res.StatusCode/100 == 3 && to != "" {
		return fmt.Errorf("the collector redirects to %.200q; if that is correct, set it in audit_forward", to)
	}
	if res.StatusCode/100 != 2 {
		return fmt.Errorf("the collector replied with status %d", res.StatusCode)
	}
	return nil
}

func (c *collector) close() { c.client.CloseIdleConnections() }

// Check validates the URL of a receiver: syslog:///dev/log, syslog+udp://host:port,
// syslog+tcp://host:port, http(s)://collector/v1/logs or file:///path.
func Check(to string) error {
	_, err := parse(to, nil)
	return err
}
