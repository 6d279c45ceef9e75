package bench

import (
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

const gigabyte = 1 << 30

// BenchmarkDownload: 1 GiB through the API, compared with cat through a socket.
func BenchmarkDownload(b *testing.B) {
	url := serve(b)
	file := big(b)
	transfer(b, "cat through a socket",
		func() time.Duration { return catThrough(b, file) },
		func() time.Duration { return download(b, url, file) })
}

// BenchmarkUpload: 1 GiB through the API, compared with cat through a socket to a file.
func BenchmarkUpload(b *testing.B) {
	url := serve(b)
	file := big(b)
	dir := memory(b)
	transfer(b, "cat through a socket into a file",
		func() time.Duration { return catInto(b, file, filepath.Join(dir, "cat")) },
		func() time.Duration { return upload(b, url, file, filepath.Join(dir, "up")) })
}

// transfer alternates between both, because the load of the machine varies.
func transfer(b *testing.B, peer string, raw, ours func() time.Duration) {
	b.Helper()
	var theirs, own []time.Duration
	for range 5 {
		theirs = append(theirs, raw())
		own = append(own, ours())
	}
	t, o := percentile(theirs, 0.5), percentile(own, 0.5)
	report(b, "1 GiB in %v, %s %v: %.0f %% of its speed (target 70 %%)", o.Round(time.Millisecond), peer,
		t.Round(time.Millisecond), 100*float64(t)/float64(o))
}

func download(b *testing.B, url, file string) time.Duration {
	b.Helper()
	begin := time.Now()
	res, err := http.Get(url + "/v1/file/download?path=" + file)
	if err != nil {
		b.Fatal(err)
	}
	n, err := io.Copy(io.Discard, res.Body)
	res.Body.Close()
	if err != nil || n != gigabyte {
		b.Fatalf("%d bytes, %v, want %v", n, err, gigabyte)
	}
	return time.Since(begin)
}

// upload removes the file at the end. Otherwise later uploads would use new memory, which is slower,
// and the peer would not.
func upload(b *testing.B, url, file, to string) time.Duration {
	b.Helper()
	defer os.Remove(to)
	var head bytes.Buffer
	w := multipart.NewWriter(&head)
	w.WriteField("path", to)
	if _, err := w.CreateFormFile("file", "up"); err != nil {
		b.Fatal(err)
	}
	tail := fmt.Sprintf("\r\n--%s--\r\n", w.Boundary())
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	size := int64(head.Len()) + gigabyte + int64(len(tail))
	begin := time.Now()
	req, err := http.NewRequest("POST", url+"/v1/file/upload", io.MultiReader(&head, f, strings.NewReader(tail)))
	if err != nil {
		b.Fatal(err)
	}
	req.ContentLength = size
	req.Header.Set("Content-Type", w.FormDataContentType())
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if !strings.Contains(string(body), `"success":true`) {
		b.Fatalf("got %q, want containing %q", string(body), `"success":true`)
	}
	return time.Since(begin)
}

func big(b *testing.B) string {
	b.Helper()
	file := filepath.Join(memory(b), "big")
	script := fmt.Sprintf("head -c 1048576 /dev/urandom > %[1]s.part && for i in $(seq 1024); do cat %[1]s.part; done > %[1]s", file)
	if out, err := exec.Command("bash", "-c", script).CombinedOutput(); err != nil {
		b.Fatalf("%s %v", out, err)
	}
	return file
}

// memory returns a folder in memory, because the speed of a disk would dominate.
func memory(b *testing.B) string {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "cove-bench-")
	if err != nil {
		return b.TempDir()
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// catThrough sends a file with cat over a loopback connection.
func catThrough(b *testing.B, file string) time.Duration {
	b.Helper()
	here, there := pair(b)
	defer here.Close()
	out, err := there.(*net.TCPConn).File()
	if err != nil {
		b.Fatal(err)
	}
	there.Close()
	cmd := exec.Command("cat", file)
	cmd.Stdout = out
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	out.Close()
	io.Copy(io.Discard, struct{ io.Reader }{here})
	cmd.Wait()
	return time.Since(begin)
}

// catInto receives a file with cat over a loopback connection.
func catInto(b *testing.B, file, name string) time.Duration {
	b.Helper()
	here, there := pair(b)
	in, err := there.(*net.TCPConn).File()
	if err != nil {
		b.Fatal(err)
	}
	there.Close()
	to, err := os.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer os.Remove(name)
	defer to.Close()
	cmd := exec.Command("cat")
	cmd.Stdin, cmd.Stdout = in, to
	f, err := os.Open(file)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	in.Close()
	io.Copy(struct{ io.Writer }{here}, f) // through user memory, like an HTTP client
	here.Close()
	cmd.Wait()
	return time.Since(begin)
}

func pair(b *testing.B) (net.Conn, net.Conn) {
	b.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	here, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	there, err := l.Accept()
	if err != nil {
		b.Fatal(err)
	}
	return here, there
}

// BenchmarkGrep: a tree of about ten thousand files through the API, compared with rg.
func BenchmarkGrep(b *testing.B) {
	testenv.Need(b, "rg")
	root := b.TempDir()
	for i := range 200 {
		dir := filepath.Join(root, fmt.Sprint(i))
		if err := os.Mkdir(dir, 0o755); err != nil {
			b.Fatal(err)
		}
		for j := range 100 {
			text := strings.Repeat(fmt.Sprintf("line of file %d with words\n", j), 60)
			if i%50 == 0 && j == 7 {
				text += "the needle is here\n"
			}
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(j)), []byte(text), 0o644); err != nil {
				b.Fatal(err)
			}
		}
	}
	url := serve(b)
	var ours, raw []time.Duration
	for range 12 {
		begin := time.Now()
		if err := exec.Command("rg", "--no-ignore", "--hidden", "-n", "needle", root).Run(); err != nil {
			b.Fatal(err)
		}
		raw = append(raw, time.Since(begin))
		begin = time.Now()
		post(b, url+"/v1/file/grep", fmt.Sprintf(`{"path":%q,"pattern":"needle"}`, root))
		ours = append(ours, time.Since(begin))
	}
	o, r := percentile(ours, 0.5), percentile(raw, 0.5)
	report(b, "p50 %v through the API, rg itself %v: %.2f × (target 1.3)", o.Round(time.Millisecond),
		r.Round(time.Millisecond), float64(o)/float64(r))
}
