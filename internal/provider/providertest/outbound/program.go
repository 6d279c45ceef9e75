package outbound

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/network/egress"
)

// program is a command that connects to HOST, and what it prints if HOST is allowed and if it is not. Need is what the command
// requires, a program or a file.
type program struct{ name, need, command, allowed, denied string }

const (
	python  = "/usr/bin/python3"
	asyncio = `import asyncio; r, w = asyncio.run(asyncio.open_connection("HOST", 80)); print("ok")`
	// The messages of C libraries about a name that does not exist.
	noName = "not known|No address|not resolve|Temporary failure"
)

// programs are those of make test.
var programs = []program{
	{"getent", "getent", "getent hosts HOST; echo $?", "198.18.", "2\n"},
	{"curl", "curl", "curl -sS http://HOST", "web web.ok.test", "Could not resolve host"},
	{"curl with TLS", "curl", "curl -sS https://HOST", "web web.ok.test", "Could not resolve host"},
	{"wget", "wget", "wget -qO- http://HOST || echo $?", "web web.ok.test", "4\n"},
	{"bash", "bash", `bash -c 'exec 3<>/dev/tcp/HOST/7 && echo hi >&3 && head -1 <&3'`, "hi\n", noName},
	{"git", "git", "git ls-remote http://HOST/x.git; echo $?", "^0\n", "Could not resolve host"},
	{"git with TLS", "git", "git ls-remote https://HOST/x.git; echo $?", "^0\n", "Could not resolve host"},
	{"git over ssh", "ssh", "git -c core.sshCommand='ssh -o BatchMode=yes' ls-remote ssh://HOST/x.git", "kex_exchange|banner", noName},
	{"ssh", "ssh", "ssh -o BatchMode=yes HOST true", "kex_exchange|banner", noName},
	{"scp", "scp", "scp -o BatchMode=yes /etc/passwd HOST:x", "kex_exchange|banner", noName},
	{"urllib", python, python + ` -c 'import urllib.request as u; print(u.urlopen("http://HOST").read())'`, "web web.ok.test", noName},
	{"asyncio", python, python + ` -c '` + asyncio + `'`, "ok\n", noName},
	{"pip",
		python, "rm -rf /tmp/wheels; " + python + " -m pip download -q -d /tmp/wheels --retries 0 --no-deps -i https://HOST/simple thing; " +
			"ls /tmp/wheels",
		"thing-1.0", "No matching distribution"},
	{"fetch", "node", `node -e 'fetch("https://HOST").then(r => r.text()).then(console.log, e => console.log(e.cause.code))'`,
		"web web.ok.test", "ENOTFOUND"},
	{"net.connect", "node", `node -e 'require("net").connect(7, "HOST", function () { this.end("hi\n") })` +
		`.on("data", d => console.log("" + d)).on("error", e => console.log(e.code))'`, "hi\n", "ENOTFOUND"},
	{"c-ares", "node", `node -e 'require("dns").resolve4("HOST", (e, a) => console.log(e ? e.code : a[0]))'`, "198.18.", "ENOTFOUND"},
	{"npm", "npm", "npm view --fetch-retries=0 --registry=https://HOST/npm/ --cache=/tmp/npm thing version", `1\.0\.0`, "ENOTFOUND"},
	{"perl", "perl", `perl -MIO::Socket::INET -e '$s = IO::Socket::INET->new("HOST:7") or die $@; print $s "hi\n"; ` +
		`print <$s> =~ s/i/o/r if shutdown($s, 1)'`, "ho\n", "Bad hostname|not known"},
	{"static Go", "", "PROBE get https://HOST", "web web.ok.test", "no such host"},
	{"go", "go",
		"PATH=$PATH:/usr/local/go/bin GOPROXY=https://HOST/go GONOSUMDB=* GOFLAGS=-mod=mod GOCACHE=/tmp/go GOPATH=/tmp/gopath " +
			"go list -m -versions thing.test/thing",
		`v1\.0\.0`, "no such host"},
	{"apt", "/usr/lib/apt/apt-helper",
		"/usr/lib/apt/apt-helper -o Acquire::Retries=0 download-file http://HOST/ /tmp/file; cat /tmp/file",
		"web web.ok.test", noName},
}

// javaSource and rustSource are programs that tests compile inside.
const (
	javaSource = `class A { public static void main(String[] a) throws Exception { System.out.println(new String(new ` +
		`java.net.URL("http://HOST").openStream().readAllBytes())); } }`
	rustSource = `use std::io::*; fn main() { let mut c = std::net::TcpStream::connect("HOST:7").unwrap(); c.write_all(b"hi\n").unwrap(); ` +
		`let mut b = [0; 3]; c.read_exact(&mut b).unwrap(); print!("{}", String::from_utf8_lossy(&b)); }`
	socketSource = `let W = globalThis.WebSocket || require("ws"), c = new W("wss://HOST/ws"); c.onmessage = m => console.log(m.data); ` +
		`c.onerror = e => console.log(e.message || e.error)`
	grpcSource = `import grpc; c = grpc.secure_channel("HOST:443", grpc.ssl_channel_credentials(open("/tmp/authority.pem", "rb").read())); ` +
		`print(c.unary_unary("/rpc.Service/Call")(b"x", timeout=60))`
)

// morePrograms take long, or make test does not install them.
var morePrograms = []program{
	{"java", "java", "printf '%s' '" + javaSource + "' >A.java; java -XX:TieredStopAtLevel=1 A.java", "web web.ok.test",
		"UnknownHostException"},
	{"psql", "psql", "psql 'host=HOST sslmode=require connect_timeout=30'", "server does not support SSL",
		"could not translate host name"},
	{"mariadb", "mariadb", "mariadb --skip-ssl -h HOST", "Too many clients", "Unknown .*server host"},
	{"redis-cli", "redis-cli", "redis-cli -h HOST ping", "PONG", noName},
	{"rsync", "rsync", "rsync rsync://HOST/x", "no such module here", noName},
	{"rsync over ssh", "rsync", "rsync -e 'ssh -o BatchMode=yes' HOST:x /tmp/", "kex_exchange|banner", noName},
	{"cargo", "/usr/bin/cargo",
		"CARGO_HOME=/tmp/cargo CARGO_NET_RETRY=0 RUSTC_BOOTSTRAP=1 " +
			"cargo -Z sparse-registry search --index sparse+https://HOST/cargo/ thing", "a thing",
		"resolve host"},
	{"rust", "/usr/bin/rustc", "printf '%s' '" + rustSource + "' >/tmp/a.rs; rustc -o /tmp/a /tmp/a.rs && /tmp/a", "hi\n", noName},
	{"ws", "/usr/share/nodejs/ws", `NODE_PATH=/usr/share/nodejs node -e '` + socketSource + `'`, "message", "ENOTFOUND|error"},
	{"requests", "/usr/lib/python3/dist-packages/requests", python + ` -c 'import requests; print(requests.get("https://HOST").text)'`,
		"web web.ok.test", "NameResolutionError|NewConnectionError"},
	{"grpcio", "/usr/lib/python3/dist-packages/grpc", python + ` -c '` + grpcSource + `'`, "reply", "UNAVAILABLE"},
	{"ruby", "ruby", `ruby -rnet/http -e 'puts Net::HTTP.get(URI("https://HOST"))'`, "web web.ok.test", noName},
	{"php", "php", `php -r 'echo file_get_contents("http://HOST");'`, "web web.ok.test", "getaddrinfo"},
	{"dig", "dig", "dig HOST", `198\.18\.`, "NXDOMAIN"},
	{"nslookup", "nslookup", "nslookup HOST", `198\.18\.`, "NXDOMAIN"},
	{"nc", "nc", `printf 'hi\n' | nc -N HOST 7`, "hi\n", noName},
	{"socat", "socat", `printf 'hi\n' | socat - TCP:HOST:7`, "hi\n", noName},
	{"chromium", "chromium", "chromium --headless NOSANDBOX --user-data-dir=/tmp/chromium --dump-dom http://HOST", "web web.ok.test",
		"ERR_(NAME_NOT_RESOLVED|INTERNET_DISCONNECTED)"},
}

// minimalPrograms exist in every image that has BusyBox.
var minimalPrograms = []program{
	{"static Go", "", "PROBE get https://HOST", "web web.ok.test", "no such host"},
	{"a query without a connection", "", "PROBE lookup HOST", `198\.18\.`, "NameError"},
	{"wget", "", "ln -sf /bin/sh /tmp/wget; /tmp/wget -qO- http://HOST", "web web.ok.test", "bad address"},
	{"nc", "", `ln -sf /bin/sh /tmp/nc; echo hi | /tmp/nc HOST 7`, "hi\n", "bad address"},
	{"nslookup", "", "ln -sf /bin/sh /tmp/nslookup; /tmp/nslookup HOST", `198\.18\.`, "NXDOMAIN|can't"},
}

func testMinimalPrograms(o *outside) { o.try(minimalPrograms) }

func testPrograms(o *outside)     { o.try(programs) }
func testMorePrograms(o *outside) { o.try(morePrograms) }

// try runs programs against names that are allowed and that are not.
func (o *outside) try(list []program) {
	o.serveProtocols()
	o.serve(egress.Config{}, "*.ok.test", "*.ok.test:7", "*.ok.test:873", "*.ok.test:3306", "*.ok.test:5432", "*.ok.test:6379")
	if out := o.must("env | grep -i proxy; true"); strings.Contains(out, "=") {
		o.Fatalf("the programs have a proxy: %q", out)
	}
	env, flags := o.trust(), ""
	if o.Unsandboxed {
		flags = "--no-sandbox"
	}
	for _, p := range list {
		o.Run(p.name, func(t *testing.T) {
			o.need(t, p.need)
			for host, want := range map[string]string{"web.ok.test": p.allowed, "bad.test": p.denied} {
				command := strings.NewReplacer("HOST", host, "PROBE", o.Probe, "NOSANDBOX", flags).Replace(p.command)
				out, err := o.Shell("export " + env + "; ( " + command + " ) 2>&1 </dev/null")
				if err != nil || !regexp.MustCompile(want).MatchString(out) {
					t.Errorf("%s: got %q, %v, want %q", command, out, err, want)
				}
			}
		})
	}
}

// need skips a test whose program does not exist inside.
func (o *outside) need(t *testing.T, what string) {
	t.Helper()
	if strings.HasPrefix(what, "/") {
		if _, err := os.Stat(what); err != nil {
			testenv.Lack(t, what+" is missing")
		}
	} else if what != "" {
		testenv.Need(t, what)
	}
}
