package observe

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func newService(t *testing.T, c Config) *Service {
	t.Helper()
	if c.State == "" {
		c.State = t.TempDir()
	}
	s := New(c)
	t.Cleanup(func() { s.Close(); s.Close() })
	return s
}

// burner is a process that holds 64 MiB and uses CPU. It reports how long it has run.
func burner(t *testing.T) *exec.Cmd {
	t.Helper()
	testenv.Need(t, "python3")
	cmd := exec.Command("python3", "-c", `
import sys
hold = bytearray(64 << 20)
hold[::4096] = b"x" * len(hold[::4096])
print("ready", flush=True)
while True: pass
`)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if _, err := io.ReadFull(out, make([]byte, 6)); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// near reports whether two figures differ by at most 3 percent.
func near(a, b float64) bool { return math.Abs(a-b) <= 0.03*max(math.Abs(a), math.Abs(b)) }

// cpuTicks returns the CPU time of a process from /proc.
func cpuTicks(t *testing.T, pid int) float64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+2:]))
	user, _ := strconv.ParseFloat(f[11], 64)
	system, _ := strconv.ParseFloat(f[12], 64)
	return user + system
}

func TestLiveAgreesWithProcAndPS(t *testing.T) {
	testenv.Need(t, "ps")
	cmd := burner(t)
	pid := cmd.Process.Pid
	s := newService(t, Config{Disks: []string{"/", "/", "/tmp", "/nowhere"}})
	s.Begin()
	if _, err := s.Live(t.Context(), LiveIn{TopRows: 500}); err != nil {
		t.Fatal(err)
	}
	// On a busy machine the two measurements may differ in time; then they are repeated.
	var got *Process
	var live Snapshot
	for attempt := 1; ; attempt++ {
		before, began := cpuTicks(t, pid), s.measure(true).Time
		// Wait for two seconds of its CPU time, regardless of the load of the machine.
		testenv.Poll(t, "CPU time of the burner", func() bool { return cpuTicks(t, pid)-before >= 200 })
		var err error
		if live, err = s.Live(t.Context(), LiveIn{TopRows: 500}); err != nil {
			t.Fatal(err)
		}
		want := (cpuTicks(t, pid) - before) / time.Since(began).Seconds()
		for i, p := range live.TopProcesses {
			if p.PID == pid {
				got = &live.TopProcesses[i]
			}
		}
		if got == nil || got.CPUPercent == nil {
			t.Fatalf("got %d processes without the burner, want it among them", len(live.TopProcesses))
		}
		if near(*got.CPUPercent, want) {
			break
		}
		if attempt == 10 {
			t.Fatalf("CPU of the burner: got %.1f %%, want %.1f %% as /proc says", *got.CPUPercent, want)
		}
	}
	out, err := exec.Command("ps", "-o", "rss=,nlwp=,ppid=,user=,comm=", "-p", strconv.Itoa(pid)).Output()
	f := strings.Fields(string(out))
	if err != nil || len(f) != 5 {
		t.Fatalf("ps: got %q and error %v, want five fields", out, err)
	}
	rss, _ := strconv.ParseFloat(f[0], 64)
	if !near(float64(got.RSS), rss*1024) || got.RSS < 64<<20 {
		t.Errorf("memory: got %d bytes, want %.0f as ps says", got.RSS, rss*1024)
	}
	if strconv.Itoa(*got.Threads) != f[1] || strconv.Itoa(*got.PPID) != f[2] || got.User != f[3] ||
		got.Comm != f[4] || *got.FDs < 3 || *got.State == "" {
		t.Errorf("got %+v, want what ps says: %q", got, f)
	}
	if len(live.TopCPU) == 0 || live.Cgroup.CPUPercent == nil || *live.Cgroup.CPUPercent <= 0 ||
		live.Cgroup.CPUUsec <= 0 || live.Cgroup.Memory <= 0 {
		t.Errorf("got %+v, want the use of the whole sandbox", live.Cgroup)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs("/", &st); err != nil {
		t.Fatal(err)
	}
	if len(live.Disk) == 0 || live.Disk[0].Path != "/" || live.Disk[0].Total != int64(st.Blocks)*st.Frsize {
		t.Errorf("got %+v, want the root file system once, with %d bytes", live.Disk, int64(st.Blocks)*st.Frsize)
	}
	if live.Mode != off {
		t.Errorf("got mode %q, want off", live.Mode)
	}
}

// Without control groups, usage is the sum over all processes, including ended ones.
func TestProcAloneCountsEndedProcesses(t *testing.T) {
	t.Parallel()
	testenv.Need(t, "bash")
	s := newService(t, Config{})
	s.group = func() group { return group{} }
	before, _ := s.Usage()
	cmd := exec.Command("bash", "-c", "for i in 1 2 3; do bash -c 'for ((i=0;i<150000;i++)); do :; done'; done")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	used := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	after, _ := s.Usage()
	if got := after.CPUUsec - before.CPUUsec; got < used.Microseconds()*9/10 {
		t.Errorf("got %d µs more, want at least the %d µs of the ended processes", got, used.Microseconds())
	}
	if after.Source != "proc" || after.Memory <= 0 {
		t.Errorf("got %+v, want memory from /proc", after)
	}
}

// fake creates a /proc and the folder of a control group.
func fake(t *testing.T, cgroup, mountinfo string, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	files["proc/self/cgroup"] = cgroup
	files["proc/self/mountinfo"] = strings.ReplaceAll(mountinfo, "ROOT", root)
	for name, body := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestControlGroups(t *testing.T) {
	t.Parallel()
	v2 := map[string]string{
		"cg/app/cpu.stat":       "usage_usec 5000000\nnr_periods 10\nnr_throttled 4\nthrottled_usec 700\n",
		"cg/app/memory.current": "1000\n", "cg/app/memory.max": "4000\n", "cg/app/memory.events": "oom 2\noom_kill 1\n",
		"cg/app/memory.stat": "anon 600\nfile 300\nshmem 50\nslab 100\n",
	}
	v1 := map[string]string{
		"cpu/app/cpu.stat": "nr_periods 10\nnr_throttled 4\nthrottled_time 700000\n", "acct/app/cpuacct.usage": "5000000000\n",
		"mem/app/memory.usage_in_bytes": "1000\n", "mem/app/memory.limit_in_bytes": "4000\n", "mem/app/memory.failcnt": "2\n",
		"mem/app/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"mem/app/memory.stat":        "total_rss 600\ntotal_cache 300\ntotal_shmem 50\n",
		"uni/cgroup.procs":           "1\n",
	}
	for name, c := range map[string]struct {
		cgroup, mounts string
		files          map[string]string
		source         string
	}{
		"v2": {"0::/app\n", "1 2 0:1 / ROOT/cg rw - cgroup2 cgroup2 rw\n", v2, "cgroup v2"},
		"v1, and v2 without controllers": {"4:memory:/app\n2:cpuacct:/app\n1:cpu:/app\n0::/app\n",
			"1 2 0:1 / ROOT/cpu rw - cgroup cgroup rw,cpu\n1 2 0:2 / ROOT/acct rw - cgroup cgroup rw,cpuacct\n1 2 " +
				"0:3 / ROOT/mem rw - cgroup cgroup rw,memory\n1 2 0:4 / ROOT/uni rw - cgroup2 cgroup2 rw\n", v1, "cgroup v1"},
		"a container's view": {"0::/docker/1\n", "1 2 0:1 /docker/1 ROOT/cg/app rw - cgroup2 cgroup2 rw\n", v2, "cgroup v2"},
	} {
		root := fake(t, c.cgroup, c.mounts, c.files)
		s := newService(t, Config{Proc: filepath.Join(root, "proc")})
		got, _ := s.Usage()
		b, _ := json.Marshal(got)
		if got.Source != c.source || got.CPUUsec != 5_000_000 || got.Memory != 1000 || *got.MemoryMax != 4000 || *got.MemoryPercent != 25 ||
			*got.Periods != 10 || *got.Throttled != 4 || *got.ThrottledUsec != 700 || *got.OOM != 2 ||
			*got.OOMKill != 1 || *got.Anon != 600 || *got.File != 300 || *got.Shmem != 50 {
			t.Errorf("%s: got %s, want the figures of %s", name, b, c.source)
		}
	}
}

func TestEventsAreFoundOnce(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"cg/cpu.stat": "usage_usec 1\nnr_periods 10\nnr_throttled 0\n", "cg/memory.current": "1000\n",
		"cg/memory.max": "4000\n", "cg/memory.events": "oom_kill 3\n",
	}
	root := fake(t, "0::/\n", "1 2 0:1 / ROOT/cg rw - cgroup2 cgroup2 rw\n", files)
	state := "stopped"
	s := newService(t, Config{Proc: filepath.Join(root, "proc"), Components: []Component{{"browser", func() (string, string) {
		return state, "it crashed"
	}}}})
	s.Begin()
	set := func(name, body string) {
		if err := os.WriteFile(filepath.Join(root, "cg", name), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	set("memory.events", "oom_kill 5\n")
	set("memory.current", "3900\n")
	set("cpu.stat", "usage_usec 2\nnr_periods 20\nnr_throttled 9\n")
	state = "failed"
	for range 3 {
		s.measure(false)
	}
	set("memory.current", "3500\n") // 87 %: not low enough
	s.measure(false)
	set("memory.current", "3900\n")
	s.measure(false)
	var kinds []string
	for _, e := range s.events.list() {
		kinds = append(kinds, e.Type)
	}
	if got := strings.Join(kinds, " "); got != "oom_kill cpu_throttled memory_high component_failed" {
		t.Errorf("got %q, want each event once", got)
	}
	if e := s.events.list()[0]; e.Data["count"] != int64(2) {
		t.Errorf("got %+v, want two killed processes", e)
	}
}

func TestSession(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{Disks: []string{"/"}})
	start := StartIn{Mode: capture, Interval: new(0.1), Key: new("once"), Disk: true}
	first, err := s.Start(t.Context(), start)
	if err != nil || first.Mode != capture || first.EndsAt == nil ||
		first.EndsAt.Sub(first.StartedAt) != 5*time.Minute || first.Interval != 0.1 {
		t.Fatalf("got %+v and error %v, want a session of five minutes", first, err)
	}
	again, err := s.Start(t.Context(), start)
	if err != nil || again.SessionID != first.SessionID {
		t.Errorf("same key: got %+v and error %v, want the same session", again, err)
	}
	_, err = s.Start(t.Context(), StartIn{Mode: guardrail})
	if e, ok := op.AsError(err); !ok || e.Code != op.Conflict || !strings.Contains(e.Msg, first.SessionID) {
		t.Errorf("second session: got %v, want a conflict that names the first", err)
	}
	samples := func() (list []Sample) {
		if err := readLines(filepath.Join(first.Dir, samplesFile), &list); err != nil {
			t.Fatal(err)
		}
		return list
	}
	testenv.Poll(t, "three samples", func() bool { return len(samples()) >= 3 })
	status, err := s.Status(t.Context(), op.None{})
	if err != nil || !status.Running || *status.SessionID != first.SessionID || status.LastSample == nil {
		t.Errorf("got %+v and error %v, want the running session", status, err)
	}
	if live, err := s.Live(t.Context(), LiveIn{TopRows: 1}); err != nil || live.Mode != capture || len(live.TopProcesses) != 1 {
		t.Errorf("live: got %+v and error %v, want mode capture and one row", live, err)
	}
	if _, err := s.Stop(t.Context(), StopIn{SessionID: new("another")}); err == nil {
		t.Error("stop of another session: got no error, want one")
	}
	stopped, err := s.Stop(t.Context(), StopIn{})
	if err != nil || stopped.SessionID != first.SessionID || !stopped.Stopped || !stopped.ReportReady {
		t.Fatalf("got %+v and error %v, want it stopped with a report", stopped, err)
	}
	if _, err := s.Stop(t.Context(), StopIn{}); err == nil {
		t.Error("second stop: got no error, want one")
	}
	list, err := s.Reports(t.Context(), op.None{})
	if err != nil || len(list) != 1 || *list[0].SessionID != first.SessionID || list[0].Reason != "stop" {
		t.Fatalf("got %+v and error %v, want the report of the session", list, err)
	}
	checkReport(t, s, list[0].ReportID, 3)
}

// checkReport downloads a report and checks its content.
func checkReport(t *testing.T, s *Service, id string, atLeast int) {
	t.Helper()
	blob, err := s.Download(t.Context(), ReportIn{id})
	if err != nil {
		t.Fatal(err)
	}
	defer blob.Body.Close()
	z, err := gzip.NewReader(blob.Body)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, id+"/")] = string(b)
	}
	if n := strings.Count(files[samplesFile], "\n"); n < atLeast {
		t.Errorf("got %d samples, want at least %d", n, atLeast)
	}
	if html := files["report.html"]; strings.Count(html, "<svg") < 2 || strings.Contains(html, "src=") || strings.Contains(html, "href=") {
		t.Errorf("got %.300s, want a page with plots that loads nothing", html)
	}
	if _, ok := files[eventsFile]; !ok {
		t.Errorf("got %d files, want the events among them", len(files))
	}
}

func TestSessionEndsByItselfWithAReport(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	if _, err := s.Start(t.Context(), StartIn{Mode: guardrail, Duration: new(1), Interval: new(0.2)}); err != nil {
		t.Fatal(err)
	}
	testenv.Poll(t, "the report", func() bool { return len(s.reports()) == 1 })
	if r := s.reports()[0]; r.Reason != "completed" {
		t.Errorf("got %+v, want the reason completed", r)
	}
	testenv.Poll(t, "the end", func() bool { st, _ := s.Status(t.Context(), op.None{}); return !st.Running && st.Mode == off })
}

func TestReports(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{MaxReports: 3})
	first, err := s.Export(t.Context(), ExportIn{Reason: "<script>alert(1)</script>", Key: new("k")})
	if err != nil || first.SessionID != nil || first.Size == 0 {
		t.Fatalf("got %+v and error %v, want a report of the current state", first, err)
	}
	if again, err := s.Export(t.Context(), ExportIn{Reason: "x", Key: new("k")}); err != nil || again.ReportID != first.ReportID {
		t.Errorf("same key: got %+v and error %v, want the same report", again, err)
	}
	checkReport(t, s, first.ReportID, 1)
	for range 4 {
		if _, err := s.Export(t.Context(), ExportIn{Reason: "more"}); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(s.reports()); n != 3 {
		t.Errorf("got %d reports, want the newest 3", n)
	}
	for _, id := range []string{first.ReportID, "../../etc/passwd", "rep-../x", "", "*"} {
		if _, err := s.Download(t.Context(), ReportIn{id}); err == nil {
			t.Errorf("download %q: got no error, want one", id)
		}
		if _, err := s.Delete(t.Context(), ReportIn{id}); err == nil {
			t.Errorf("delete %q: got no error, want one", id)
		}
	}
	newest := s.reports()[0]
	if got, err := s.Delete(t.Context(), ReportIn{newest.ReportID}); err != nil || got.ReportID != newest.ReportID || len(s.reports()) != 2 {
		t.Errorf("delete: got %+v and error %v, want it deleted", got, err)
	}
	if files, _ := filepath.Glob(filepath.Join(s.reportDir(), "*")); len(files) != 4 {
		t.Errorf("got %q, want two files for each of two reports", files)
	}
	if _, err := s.Export(t.Context(), ExportIn{SessionID: new("none")}); err == nil {
		t.Error("unknown session: got no error, want one")
	}
}

func TestSamplesAreBounded(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{MaxSamples: 8 << 10})
	n := &session{dir: t.TempDir(), files: map[string]*os.File{}, sizes: map[string]int64{}}
	for range 2000 {
		n.write(s, samplesFile, Sample{Time: time.Now()})
	}
	for _, f := range n.files {
		f.Close()
	}
	var total int64
	files, _ := filepath.Glob(n.dir + "/*")
	for _, f := range files {
		info, err := os.Stat(f)
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	kept, _, err := n.read()
	if total > 8<<10 || total < 4<<10 || err != nil || len(kept) == 0 {
		t.Errorf("got %d bytes, %d samples and error %v, want at most 8 KiB of the newest", total, len(kept), err)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{})
	for name, in := range map[string]StartIn{
		"no duration": {Mode: capture, Duration: new(0)}, "negative": {Mode: capture, Duration: new(-1)},
		"too long":  {Mode: capture, Duration: new(1 << 40)},
		"too often": {Mode: capture, Interval: new(0.0)}, "not a number": {Mode: capture, Interval: new(math.NaN())},
		"too seldom": {Mode: capture, Interval: new(1e9)},
	} {
		if _, err := s.Start(t.Context(), in); err == nil {
			t.Errorf("%s: got no error, want one", name)
		}
	}
	for _, rows := range []int{-1, 501} {
		if _, err := s.Live(t.Context(), LiveIn{TopRows: rows}); err == nil {
			t.Errorf("%d rows: got no error, want one", rows)
		}
	}
}

func TestManyCallersAtOnce(t *testing.T) {
	t.Parallel()
	s := newService(t, Config{Disks: []string{"/"}})
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			s.Live(t.Context(), LiveIn{TopRows: 5})
			s.Start(t.Context(), StartIn{Mode: guardrail, Key: new(strconv.Itoa(i))})
			s.Export(t.Context(), ExportIn{Reason: "r"})
			s.Stop(t.Context(), StopIn{})
			s.Reports(t.Context(), op.None{})
		})
	}
	wait.Wait()
}

// BenchmarkGuardrail measures one sample of a guardrail session, which takes one every 30 seconds.
func BenchmarkGuardrail(b *testing.B) {
	s := New(Config{State: b.TempDir(), Disks: []string{"/", "/tmp"}})
	defer s.Close()
	n := &session{dir: b.TempDir(), disk: true, files: map[string]*os.File{}, sizes: map[string]int64{}}
	for b.Loop() {
		s.sample(n)
	}
	b.ReportMetric(float64(b.Elapsed())/float64(b.N)/float64(30*time.Second)*100, "%core")
	for _, f := range n.files {
		f.Close()
	}
}
