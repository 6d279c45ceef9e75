package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// desk starts the program with an empty home and returns its process, whose children are measured.
func desk(b *testing.B) (url string, pid int) {
	b.Helper()
	testenv.Need(b, "chromium", "Xtigervnc", "openbox")
	cmd, addr := launch(b, program(b, "aio"))
	b.Cleanup(func() { cmd.Process.Signal(syscall.SIGTERM); cmd.Wait() })
	awaitHealth(b, addr)
	return "http://" + addr, cmd.Process.Pid
}

func get(b *testing.B, url string) []byte {
	b.Helper()
	res, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s %v %.300s, want status 200", url, res.Status, err, body)
	}
	return body
}

// below returns a process and its descendants.
func below(pid int) []int {
	list := []int{pid}
	for i := 0; i < len(list); i++ {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", list[i]))
		for _, task := range tasks {
			text, _ := os.ReadFile(task) // a process may end during the scan
			for word := range strings.FieldsSeq(string(text)) {
				if child, err := strconv.Atoi(word); err == nil {
					list = append(list, child)
				}
			}
		}
	}
	return list
}

// display is the environment by which other programs find the server's display.
func display(b *testing.B, pid int) []string {
	b.Helper()
	for _, p := range below(pid) {
		if name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p)); strings.TrimSpace(string(name)) != "openbox" {
			continue
		}
		env, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", p))
		out := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + b.TempDir()}
		for pair := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.HasPrefix(pair, []byte("DISPLAY=")) || bytes.HasPrefix(pair, []byte("XAUTHORITY=")) {
				out = append(out, string(pair))
			}
		}
		return out
	}
	b.Fatal("the display has no window manager")
	return nil
}

// pages are the contents of the display, with an increasing amount of detail.
func pages(w http.ResponseWriter, r *http.Request) {
	ground := map[string]string{"/text": "#fff", "/gradient": "linear-gradient(#fff,#dde6f5)"}[r.URL.Path]
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, `<!doctype html><title>article</title><body style="font:16px serif;columns:2;background:%s">`, ground)
	for i := range 60 {
		fmt.Fprintf(w, "<p><b>%d.</b> The quick brown fox jumps over the lazy dog, 世界, and Zwölf Boxkämpfer jagen "+
			"Viktor quer über den großen Sylter Deich.</p>", i)
	}
}

// show opens a page in a new tab and waits until it is drawn and the browser is idle.
func show(b *testing.B, url, page string) {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), http.MethodPut, url+"/json/new?"+page, nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	res.Body.Close()
	idle(b, 3*time.Second)
}

// BenchmarkScreenshot: the whole display as PNG over HTTP, compared with the usual programs on the same display.
func BenchmarkScreenshot(b *testing.B) {
	testenv.Need(b, "maim", "scrot")
	url, pid := desk(b)
	site := httptest.NewServer(http.HandlerFunc(pages))
	defer site.Close()
	get(b, url+"/v1/browser/info")
	env, file := display(b, pid), filepath.Join(b.TempDir(), "shot.png")
	peer := func(args ...string) time.Duration {
		cmd := exec.Command(args[0], args[1:]...)
		cmd.Env = env
		begin := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %v %s", args, err, out)
		}
		return time.Since(begin)
	}
	for _, page := range []string{"about:blank", site.URL + "/text", site.URL + "/gradient"} {
		show(b, url, page)
		var ours, jpeg, maim, scrot []time.Duration
		size, theirs := 0, int64(0)
		for range 15 {
			for range 2 {
				begin := time.Now()
				size = len(get(b, url+"/v1/browser/screenshot"))
				ours = append(ours, time.Since(begin))
			}
			begin := time.Now()
			get(b, url+"/v1/browser/screenshot?format=jpeg")
			jpeg = append(jpeg, time.Since(begin))
			maim = append(maim, peer("maim", file))
			if info, err := os.Stat(file); err == nil {
				theirs = info.Size()
			}
			scrot = append(scrot, peer("scrot", "--overwrite", file))
		}
		ms := func(list []time.Duration) string {
			return percentile(list, 0.5).Round(100 * time.Microsecond).String()
		}
		report(b, "%-11s p50 %s PNG of %d KB (target 25ms), %s JPEG; maim %s (%d KB), scrot %s",
			page[strings.LastIndexByte(page, '/')+1:], ms(ours), size>>10, ms(jpeg), ms(maim), theirs>>10, ms(scrot))
	}
}

// BenchmarkBrowserCold: the first browser/info with an empty home, including the display, compared with Chromium that only
// prints an empty page.
func BenchmarkBrowserCold(b *testing.B) {
	var ours, raw []time.Duration
	for range 5 {
		ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
			"--disable-background-networking",
			"--disable-component-update", "--disable-sync", "--user-data-dir="+b.TempDir(), "--dump-dom", "about:blank")
		begin := time.Now()
		if out, err := cmd.CombinedOutput(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		raw = append(raw, time.Since(begin))
		cancel()

		url, _ := desk(b)
		begin = time.Now()
		var reply struct {
			Success bool   `json:"success"`
			Message string `json:"message"`
		}
		if err := json.Unmarshal(get(b, url+"/v1/browser/info"), &reply); err != nil || !reply.Success {
			b.Fatalf("got %v, %v, want Success true", err, reply.Message)
		}
		ours = append(ours, time.Since(begin))
	}
	report(b, "first browser/info: best %v, p50 %v (target 2s); headless Chromium prints a blank page in %v",
		percentile(ours, 0).Round(time.Millisecond), percentile(ours, 0.5).Round(time.Millisecond), percentile(raw, 0.5).Round(time.Millisecond))
}

// BenchmarkDesktopMemory: memory of the idle desktop.
func BenchmarkDesktopMemory(b *testing.B) {
	url, pid := desk(b)
	get(b, url+"/v1/browser/info")
	idle(b, 5*time.Second)
	kib, count := map[string]int{}, map[string]int{}
	for _, p := range below(pid) {
		name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p))
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", p))
		if err != nil {
			continue
		}
		var pss int
		_, line, _ := strings.Cut(string(text), "\nPss:")
		fmt.Sscan(line, &pss)
		kib[strings.TrimSpace(string(name))] += pss
		count[strings.TrimSpace(string(name))]++
	}
	all := 0
	for _, n := range kib {
		all += n
	}
	report(b, "idle PSS: Xtigervnc %d MB, openbox %d MB, chromium %d MB in %d processes, aio %d MB, all %d MB",
		kib["Xtigervnc"]>>10, kib["openbox"]>>10, kib["chromium"]>>10, count["chromium"], kib["aio"]>>10, all>>10)
}
