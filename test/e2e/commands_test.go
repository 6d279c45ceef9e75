package e2e

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// commands are the commands that agents run most, in the default environment. Package managers use the
// registries of the test. The commands run sequentially in one sandbox.
var commands = []check{
	// Inspection.
	{"pwd", "/home/gem"}, {"ls -la / | wc -l", "…"}, {"whoami", "gem"}, {"id -u", "1000"}, {"uname -s", "Linux"},
	{"hostname", "alpha"}, {"env | grep -c ^HOME=", "1"},
	{"date +%Y | grep -c 20", "1"}, {"df -h / | wc -l", "2"}, {"du -sh ~ | cut -f2", "/home/gem"},
	{"ps aux | head -n 1 | cut -c1-4", "USER"}, {"cat /etc/os-release | grep -c ^ID=", "1"},
	{"nproc", "…"}, {"free -m | head -n 2 | wc -l", "2"}, {"uptime | wc -l", "1"},
	{"which bash python3 node git | wc -l", "4"}, {"type cd", "cd is a shell builtin"}, {"echo $SHELL", "/bin/bash"},
	{"tty || true", "not a tty"}, {"locale | head -n 1", "LANG=C.UTF-8"},
	// Files.
	{"mkdir -p ~/w/a/b && cd ~/w && touch a/x a/b/y && find . -type f | sort", "./a/b/y\n./a/x"},
	{"cd ~/w && printf 'one\\ntwo\\nthree\\n' > t && wc -l < t && head -n 1 t && tail -n 1 t", "3\none\nthree"},
	{"cd ~/w && sed -i 's/two/2/' t && cat t", "one\n2\nthree"}, {"cd ~/w && grep -rn three . | head -n 1",
		"./t:3:three"}, {"cd ~/w && rg -n three t", "3:three"}, {"cd ~/w && awk '{print NR\":\"$1}' t | tail -n 1", "3:three"},
	{"cd ~/w && sort -r t | uniq | head -n 1", "three"}, {"cd ~/w && cut -c1 t | tr -d '\\n'", "o2t"},
	{"cd ~/w && cp t u && mv u v && rm v && ls", "a\nt"}, {"cd ~/w && ln -s t l && readlink l && stat -c %F l", "t\nsymbolic link"},
	{"cd ~/w && chmod 600 t && stat -c %a t", "600"}, {"cd ~/w && tar czf t.tgz a t && tar tzf t.tgz | wc -l", "5"},
	{"cd ~/w && zip -qr t.zip a && unzip -l t.zip | tail -n 1 | grep -c files", "1"},
	{"cd ~/w && gzip -k t && gunzip -c t.gz | head -n 1", "one"},
	{"cd ~/w && xz -k t && xz -dc t.xz | tail -n 1", "three"}, {"cd ~/w && diff t <(echo one) | wc -l", "3"},
	{"cd ~/w && (cp t t2; echo four >> t2; diff -u t t2 > p; patch -s t < p; tail -n 1 t)", "four"},
	{"cd ~/w && sha256sum t | cut -c1-8 | wc -c", "9"},
	{"cd ~/w && base64 t | base64 -d | head -n 1", "one"}, {"cd ~/w && file t", "t: ASCII text"},
	{"cd ~/w && xxd t | head -n 1 | cut -c1-8 || od -c t | head -n 1", "…"},
	{"cd ~/w && split -l 1 t part. && ls part.* | wc -l", "4"}, {"cd ~/w && ls part.* | xargs -n1 cat | head -n 1", "one"},
	{"cd ~/w && echo '{\"a\":[1,2]}' | jq -c .a", "[1,2]"}, {"echo '6*7' | bc", "42"},
	{"seq 3 | paste -sd+ ", "1+2+3"}, {"mktemp -d | cut -c1-5", "/tmp/"},
	{"cat > ~/w/here <<'X'\nheredoc\nX\ncat ~/w/here", "heredoc"}, {"timeout 5 sleep 0; echo $?", "0"}, {"echo y | tee ~/w/tee", "y"},
	// Git.
	{"git config --global user.email a@example.com && git config --global user.name a && git config --global " +
		"init.defaultBranch main && echo set", "set"},
	{"mkdir -p ~/r && cd ~/r && git init -q && echo 1 > f && git add . && git commit -qm first && git log --oneline | wc -l", "1"},
	{"cd ~/r && git checkout -qb topic && echo 2 > f && git commit -qam second && git diff HEAD~1 --stat | tail -n 1",
		"…1 insertion(+), 1 deletion(-)"}, {"cd ~/r && git checkout -q main && git merge -q topic && cat f", "2"},
	{"git clone -q ~/r ~/c && ls ~/c", "f"},
	{"cd ~/c && git status --short --branch", "## main...origin/main"},
	{"cd ~/c && echo 3 > f && git stash -q && git stash pop -q && git diff --name-only", "f"},
	{"cd ~/r && git blame f | wc -l && git tag v1 && git tag", "1\nv1"}, {"cd ~/r && git worktree add -q ../tree topic && ls ../tree", "f"},
	// Building.
	{"cd ~/w && printf '#include <stdio.h>\\nint main(){puts(\"c runs\");}' > m.c && gcc -O1 m.c -o m && ./m",
		"c runs"}, {"cd ~/w && printf '#include <iostream>\\nint main(){std::cout<<\"c++ runs\\\\n\";}' > n.cc && " +
		"g++ n.cc -o n && ./n", "c++ runs"},
	{"cd ~/w && printf 'all: m\\n\\t@echo made\\nm: m.c\\n' > Makefile && make", "made"},
	{"mkdir -p ~/cm && cd ~/cm && printf 'cmake_minimum_required(VERSION 3.10)\\nproject(x C)\\nadd_executable(x " +
		"x.c)\\n' > CMakeLists.txt && cp ~/w/m.c x.c && cmake -B b >/dev/null && cmake --build b >/dev/null && b/x", "c runs"},
	{"cd ~/w && printf 'public class J{public static void main(String[] a){System.out.println(\"java runs\");}}' > " +
		"J.java && javac J.java && java J", "java runs"}, {"perl -e 'print 6*7'", "42"}, {"sudo make -C ~/w m >/dev/null && echo built", "built"},
	// Python.
	{"python3 --version | cut -c1-8", "Python 3"}, {"python -c 'print(sum(range(10)))'", "45"},
	{"python3 -c 'import numpy, pandas, matplotlib; print(pandas.DataFrame({\"a\":[1,2]}).a.sum())'", "3"},
	{"cd ~/w && echo 'print(\"script\")' > s.py && python3 s.py", "script"},
	{"pip install -q covepkg && covepy", "python runs"}, {"pip list 2>/dev/null | grep -c covepkg", "1"},
	{"pip show covepkg 2>/dev/null | grep Version", "Version: 1.0"}, {"pip freeze 2>/dev/null | grep covepkg",
		"covepkg==1.0"}, {"python3 -m venv ~/venv && . ~/venv/bin/activate && pip install -q covepkg && covepy && " +
		"which python", "python runs\n/home/gem/venv/bin/python"},
	{"python3 -m unittest 2>&1 | head -n 1 | wc -l", "1"}, {"python3 -m json.tool <<< '{}'", "{}"},
	{"uv --version | cut -c1-3", "uv"},
	{"uv venv -q ~/uv && VIRTUAL_ENV=~/uv uv pip install -q covepkg && ~/uv/bin/covepy", "python runs"},
	{"pipx install -q covepkg >/dev/null 2>&1; pipx list --short", "covepkg 1.0"},
	{"python3 -c 'import sqlite3; print(sqlite3.connect(\":memory:\").execute(\"select 6*7\").fetchone()[0])'", "42"},
	{"python3 -c 'import multiprocessing as m; print(m.Pool(2).map(abs, [-1, 2]))'", "[1, 2]"},
	// Node.
	{"node -e 'console.log(6*7)'", "42"}, {"npm --version | wc -l", "1"},
	{"mkdir -p ~/js && cd ~/js && npm init -y >/dev/null && npm install --silent covepkg >/dev/null && npx covenpm",
		"node runs"}, {"npm install -g --silent covepkg >/dev/null && covenpm", "node runs"},
	{"cd ~/js && npm pkg set scripts.t='echo tested' && npm run -s t", "tested"},
	{"cd ~/js && npm ls --depth 0 | grep -c covepkg", "1"},
	{"node -e 'console.log(Object.keys(require(\"os\").networkInterfaces()).length)'", "1"},
	// Root.
	{"sudo whoami", "root"}, {"sudo apt-get -qq update && sudo apt-get install -qq -y cove-script >/dev/null 2>&1 " +
		"&& cove-script", "script runs"}, {"dpkg -l | grep -c cove-script", "1"},
	{"apt list --installed 2>/dev/null | grep -c cove-daemon", "1"}, {"dpkg -L cove-script | grep bin/cove", "/usr/bin/cove-script"},
	{"sudo useradd -m bob && sudo -u bob whoami", "bob"}, {"sudo tee /etc/motd <<< hi >/dev/null && cat /etc/motd",
		"hi"}, {"sudo chown -R gem: /srv && touch /srv/x && ls /srv", "x"},
	{"sudo ln -sf /usr/bin/env /usr/local/bin/myenv && myenv true; echo $?", "0"},
	// Background servers, manually started databases, web stacks.
	{"cd ~/w && (python3 -m http.server 8000 >/dev/null 2>&1 &) ; curl -s --retry 50 --retry-connrefused " +
		"--retry-delay 0 localhost:8000/t | head -n 1", "one"},
	{"cd ~/js && printf 'require(\"http\").createServer((q,s)=>s.end(\"node serves\")).listen(3000)' > srv.js && " +
		"(nohup node srv.js >/dev/null 2>&1 &) ; curl -s --retry 50 --retry-connrefused --retry-delay 0 localhost:3000", "node serves"},
	{"ss -ltn | grep -c -E ':(8000|3000)'", "2"},
	{"lsof -ti :3000 | xargs kill && while curl -so /dev/null localhost:3000; do :; done && echo down", "down"},
	{"pkill -f 'http[.]server 8000'; echo $?", "0"}, {"wget -qO- http://127.0.0.1:8080/readyz >/dev/null && echo ready", "ready"},
	{"sqlite3 ~/w/db 'create table t(a); insert into t values(42); select a from t'", "42"},
	{"export PATH=$PATH:$(ls -d /usr/lib/postgresql/*/bin | tail -n 1); initdb -D ~/pg >/dev/null 2>&1 && pg_ctl " +
		"-D ~/pg -o '-k /tmp' -l ~/pg.log -w start >/dev/null && psql -h /tmp -d postgres -Atc 'select 6*7' && " +
		"pg_ctl -D ~/pg -m fast stop >/dev/null", "42"},
	{"tmux new-session -d -s s cat && tmux ls | cut -d: -f1 && tmux kill-server", "s"},
	{"(sleep 100 &) ; until pgrep -x sleep >/dev/null; do :; done; pgrep -c sleep && pkill sleep; echo $?", "1\n0"},
	{"openssl req -x509 -newkey rsa:2048 -nodes -keyout ~/k -out ~/crt -subj /CN=x -days 1 2>/dev/null && openssl " +
		"x509 -in ~/crt -noout -subject", "subject=CN = x"},
	{"ssh-keygen -q -t ed25519 -N '' -f ~/.ssh/id && ls ~/.ssh", "id\nid.pub"}, {"echo '* * * * *' | wc -w", "5"},
	{"strace -c true 2>&1 | tail -n 1 | grep -c total", "1"},
	{"chromium --headless --disable-gpu --dump-dom 'data:text/html,<p>page</p>' 2>/dev/null | grep -o page", "page"},
	{"ffmpeg -loglevel error -f lavfi -i color=red:s=16x16:d=0.1 -y ~/w/x.mp4 && ls ~/w/x.mp4", "/home/gem/w/x.mp4"},
	{"echo '# t' | pandoc -t html | grep -c h1", "1"}, {"ip addr show lo | grep -c 127.0.0.1", "1"},
	{"crontab -l 2>/dev/null || echo none", "none"},
}

// The hundred commands that agents use most run in the default environment.
func TestHundredCommands(t *testing.T) {
	t.Parallel()
	testenv.Engine(t) // installs compilers and a database, which are large
	testenv.Need(t, "gcc", "g++", "make", "cmake", "javac", "git", "jq", "bc", "patch", "sqlite3", "psql", "tmux",
		"rg", "zip", "xz", "file", "lsof", "strace", "ssh-keygen", "pandoc", "ffmpeg", "chromium", "wget", "openssl")
	if len(commands) < 100 {
		t.Errorf("got %d commands, want a hundred", len(commands))
	}
	h := serveHub(t, "--private-networks", "127.0.0.1/32", "--memory-limit", "4GiB")
	with := registries(t)
	h.must(t, "create", "alpha")
	h.verify(t, "alpha", check{with + `sudo rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*; echo "deb ` +
		`[trusted=yes] $REPOSITORY ./" | sudo tee /etc/apt/sources.list >/dev/null; printf '%s\n' "export ` +
		`PIP_INDEX_URL=$PIP_INDEX_URL UV_INDEX_URL=$UV_INDEX_URL NPM_CONFIG_REGISTRY=$NPM_CONFIG_REGISTRY ` +
		`DEBIAN_FRONTEND=noninteractive; unset no_proxy NO_PROXY" > ~/with`, ""})
	for i, c := range commands {
		t.Run(fmt.Sprint(i+1), func(t *testing.T) {
			install := ""
			for _, word := range []string{"covepkg", "apt-get"} {
				if strings.Contains(c.command, word) {
					install = ". ~/with; "
				}
			}
			h.verify(t, "alpha", check{install + c.command, c.want})
		})
	}
}
