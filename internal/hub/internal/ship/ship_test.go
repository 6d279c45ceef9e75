package ship

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	auditlog "github.com/cove-sandbox/cove/internal/hub/internal/audit"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// rig is a log that is shipped.
type rig struct {
	t     *testing.T
	log   *auditlog.Log
	dir   string
	state string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, dir: filepath.Join(t.TempDir(), "audit"), state: t.TempDir()}
	l, err := auditlog.Open(auditlog.Config{Dir: r.dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	r.log = l
	return r
}

func (r *rig) start(to ...string) *Shipper {
	r.t.Helper()
	s, err := Start(Config{Logs: map[string]string{"changes": r.dir}, To: to,
		Headers: map[string]string{"X-Key": "k"}, State: r.state, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { s.Close() })
	return s
}

func (r *rig) write(from, to int) {
	r.t.Helper()
	for i := from; i < to; i++ {
		if err := r.log.Append(auditlog.Entry{Tenant: "ann", Op: fmt.Sprintf("op_%d", i)}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// inbox collects the lines that a receiver got.
type inbox struct {
	mu  sync.Mutex
	got bytes.Buffer
}

func (b *inbox) add(text []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.got.Write(text)
	b.got.WriteByte('\n')
}

func (b *inbox) has(from, to int) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := from; i < to; i++ {
		if !strings.Contains(b.got.String(), fmt.Sprintf("op_%d\"", i)) && !strings.Contains(b.got.String(), fmt.Sprintf(`op_%d\"`, i)) {
			return false
		}
	}
	return true
}

func datagrams(t *testing.T, network, address string) (*inbox, string) {
	t.Helper()
	c, err := net.ListenPacket(network, address)
	if err != nil {
		t.Fatal(err)
	}
	box, ended := &inbox{}, make(chan struct{})
	go func() {
		defer close(ended)
		b := make([]byte, 64<<10)
		for {
			n, _, err := c.ReadFrom(b)
			if err != nil {
				return
			}
			box.add(b[:n])
		}
	}()
	t.Cleanup(func() { c.Close(); <-ended })
	return box, c.LocalAddr().String()
}

// stream reads syslog messages with octet counting.
func stream(t *testing.T) (*inbox, string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	box := &inbox{}
	var work sync.WaitGroup
	work.Go(func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		for r := bufio.NewReader(c); ; {
			size, err := r.ReadString(' ')
			if err != nil {
				return
			}
			n, err := strconv.Atoi(strings.TrimSpace(size))
			message := make([]byte, n)
			if _, short := io.ReadFull(r, message); err != nil || short != nil {
				box.add([]byte("bad frame " + size))
				return
			}
			box.add(message)
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return box, l.Addr().String()
}

// TestEveryReceiver: every receiver gets every line unmodified.
func TestEveryReceiver(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	socket := filepath.Join(t.TempDir(), "log")
	unix, _ := datagrams(t, "unixgram", socket)
	udp, udpAt := datagrams(t, "udp", "127.0.0.1:0")
	tcp, tcpAt := stream(t)
	otlp := &inbox{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		var body struct {
			ResourceLogs []struct {
				ScopeLogs []struct {
					LogRecords []struct {
						Time string `json:"timeUnixNano"`
						Body struct {
							String string `json:"stringValue"`
						} `json:"body"`
					} `json:"logRecords"`
				} `json:"scopeLogs"`
			} `json:"resourceLogs"`
		}
		if err := json.NewDecoder(q.Body).Decode(&body); err != nil || q.URL.Path != "/v1/logs" || q.Header.Get("X-Key") != "k" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		for _, l := range body.ResourceLogs[0].ScopeLogs[0].LogRecords {
			if l.Time != "" {
				otlp.add([]byte(l.Body.String))
			}
		}
	}))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	r.write(0, 3) // before the start
	r.start("syslog://"+socket, "syslog+udp://"+udpAt, "syslog+tcp://"+tcpAt, server.URL+"/v1/logs", "file://"+file)
	r.write(3, 10)
	for name, box := range map[string]*inbox{"unix": unix, "udp": udp, "tcp": tcp, "otlp": otlp} {
		testenv.Poll(t, name+" has all lines", func() bool { return box.has(0, 10) })
	}
	testenv.Poll(t, "the file has all lines", func() bool {
		b, _ := os.ReadFile(file)
		return bytes.Count(b, []byte("\n")) == 10
	})
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var first struct {
		Log, Hash, Op string
		Seq           uint64
	}
	if err := json.Unmarshal(bytes.SplitN(b, []byte("\n"), 2)[0], &first); err != nil || first.Log != "changes" ||
		first.Hash == "" || first.Seq == 0 || first.Op != "op_0" {
		t.Errorf("got %+v, %v, want the line with its chain", first, err)
	}
	if got := unix.got.String(); !strings.HasPrefix(got, "<109>1 20") || !strings.Contains(got, " cove ") {
		t.Errorf("got %.100q, want RFC 5424", got)
	}
}

// TestReceiverIsUnreachable: a receiver that was unreachable gets all lines, and a restarted hub continues.
func TestReceiverIsUnreachable(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var up atomic.Bool
	box := &inbox{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		if !up.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		box.add(b)
	}))
	defer server.Close()
	r.write(0, 5)
	s := r.start(server.URL)
	testenv.Poll(t, "an attempt has failed", func() bool { return s.Failing() > 0 })
	r.write(5, 8)
	up.Store(true)
	testenv.Poll(t, "all lines are there", func() bool { return box.has(0, 8) })
	testenv.Poll(t, "the position is stored", func() bool {
		files, _ := filepath.Glob(filepath.Join(r.state, "changes-*.json"))
		if len(files) != 1 {
			return false
		}
		b, _ := os.ReadFile(files[0])
		return strings.Contains(string(b), `"seq":8`)
	})
	s.Close()
	box.mu.Lock()
	box.got.Reset()
	box.mu.Unlock()
	r.write(8, 10)
	r.start(server.URL)
	testenv.Poll(t, "the new lines are there", func() bool { return box.has(8, 10) })
	if box.has(0, 1) {
		t.Error("lines were sent again after a clean shutdown")
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	for to, ok := range map[string]bool{
		"syslog:///dev/log": true, "syslog+tcp://h:601": true, "syslog+udp://h:514": true, "https://c/v1/logs": true,
		"file:///var/log/cove.jsonl": true,
		"":                           false, "syslog": false, "syslog+tcp://h": false, "file://relative": false, "ftp://x/y": false, "%": false,
	} {
		if err := Check(to); (err == nil) != ok {
			t.Errorf("%q: got %v, want ok %v", to, err, ok)
		}
	}
}

// TestHeadersStayWithTheReceiver: if a receiver redirects to another host, no header is sent there.
// The lines are kept until the receiver accepts them itself.
func TestHeadersStayWithTheReceiver(t *testing.T) {
	t.Parallel()
	var strayed, asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { strayed.Add(1) }))
	defer other.Close()
	var in inbox
	var moved atomic.Bool
	moved.Store(true)
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if moved.Load() {
			http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
			return
		}
		body, _ := io.ReadAll(r.Body)
		in.add(body)
	}))
	defer receiver.Close()
	r := newRig(t)
	r.start(receiver.URL)
	r.write(0, 3)
	testenv.Poll(t, "the receiver has redirected twice", func() bool { return asked.Load() > 1 })
	moved.Store(false)
	testenv.Poll(t, "the lines arrive", func() bool { return in.has(0, 3) })
	if n := strayed.Load(); n != 0 {
		t.Errorf("got %d requests at the other host, want none", n)
	}
}
