package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/dev/testenv"
)

// TestHostileBuilds: steps that exhaust a resource or leave something behind fail or are bounded, and harm no later step.
func TestHostileBuilds(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.beginOwn(t, "--tenants")
	p := newProject(t, h, nil)
	const from = "FROM environment://\n"
	for text, want := range map[string]string{
		"RUN head -c 1G /dev/zero > /opt/fill":                               "Dockerfile:2",
		"RUN python3 -c 'x = bytearray(2 << 30)'":                            "Dockerfile:2",
		"RUN i=0; while [ $i -lt 100000 ]; do sleep 1000 & i=$((i+1)); done": "Dockerfile:2",
		"RUN mount -t tmpfs none /mnt":                                       "Dockerfile:2",
		"RUN --mount=type=secret,id=t,target=/etc/passwd true":               "its target /etc/passwd exists",
		"COPY <<EOF /proc/sys/kernel/core_pattern\nx\nEOF":                   "Dockerfile:2",
	} {
		p.write("Dockerfile", from+text+"\n")
		p.fails(1, want, "-t", "bad", "--disk-limit", "64Mi", "-m", "256Mi", "--secret", "id=t,src="+os.DevNull)
	}
	// An endless log is cut, and its control characters do not reach a terminal.
	p.write("Dockerfile", from+`RUN printf '\033[2J\033]0;title\007'; timeout 5 yes 0123456789012345678901234567890123456789 || true
RUN test -e /etc/passwd
`)
	log := p.must("steps cached", "-t", "loud")
	if len(log) > 8<<20 || !strings.Contains(log, "the output is truncated") || strings.Contains(log, "\x1b") {
		t.Errorf("the log has %d bytes and begins with %.500q", len(log), log)
	}
	// A process that a step leaves behind cannot change the disk afterwards.
	p.write("Dockerfile", from+`RUN setsid sh -c 'while :; do date +%N > /opt/late; done' > /dev/null 2>&1 & sleep 0.3
RUN a=$(cat /opt/late); sleep 0.5; test "$a" = "$(cat /opt/late)"
`)
	p.must("steps cached", "-t", "late")
	p.nothingLeft()

	// A tenant does not see the cache of another, and cannot use its template.
	p.write("Dockerfile",
		from+"RUN --mount=type=cache,target=/var/c touch /var/c/$(date +%N); ls /var/c | wc -l > /opt/n\nRUN test $(cat /opt/n) = 1\n")
	p.must("steps cached", "-t", "mine")
	other := *h
	other.env = append(append([]string{}, h.env...), "COVE_API_KEY="+h.addKey(t, "bob"))
	q := &project{t, &other, p.dir}
	q.must("steps cached", "-t", "mine")
	p.write("Dockerfile", "FROM template://late\n")
	q.fails(1, `no template "late"`, "-t", "mine")
}

// TestBuildIsKilled: a hub that is killed at any time leaves no sandbox and no layer behind. The next hub reuses the finished
// steps.
func TestBuildIsKilled(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.NeedRoot(t)
	h := &hub{State: t.TempDir()}
	h.beginOwn(t, "--tenants")
	const steps = 6
	for round := range 8 {
		var steplist []client.BuildStep
		for i := range steps {
			command := fmt.Sprintf("echo %d-%d >> /opt/steps; sleep 0.0%d", round, i, rand.IntN(10))
			steplist = append(steplist, client.BuildStep{Kind: "run", Command: command})
		}
		name := fmt.Sprintf("t%d", round)
		c := h.client(t)
		b, err := c.Templates().StartBuild(t.Context(), name, client.BuildOptions{Steps: steplist})
		if err != nil {
			t.Fatal(err)
		}
		seen := 0 // kill at another step in each round, and at another time in it
		for _, err := range c.Templates().BuildLog(t.Context(), b.ID) {
			if seen++; err != nil || seen > round%steps {
				break
			}
		}
		select {
		case <-time.After(time.Duration(rand.IntN(60)) * time.Millisecond):
		case <-t.Context().Done():
		}
		h.cmd.Process.Kill()
		<-h.done
		h.start(t, "--tenants")
		h.env = append(h.env, "COVE_API_KEY="+h.key)
		c = h.client(t)
		testenv.Poll(t, "no sandbox of a build is left", func() bool {
			list, err := c.List(t.Context(), client.ListOptions{User: "*"})
			return err == nil && len(list) == 0
		})
		before, err := c.Templates().Build(t.Context(), b.ID)
		if err != nil || !before.Ended() || before.Status == "error" && !strings.Contains(before.Error, "restarted") {
			t.Errorf("round %d: got %+v, %v, want a build that has ended", round, before, err)
		}
		again, err := c.Templates().StartBuild(t.Context(), name, client.BuildOptions{Steps: steplist})
		if err != nil {
			t.Fatal(err)
		}
		testenv.Poll(t, "the build ends", func() bool {
			again, err = c.Templates().Build(t.Context(), again.ID)
			return err != nil || again.Ended()
		})
		if err != nil || again.Status != "ready" {
			t.Fatalf("round %d: got %+v, %v, want a template", round, again, err)
		}
		if seen > 2 && !again.Steps[0].Cached {
			t.Errorf("round %d: the first step ran again", round)
		}
		h.must(t, "create", "a", "--environment", name)
		var want []string
		for i := range steps {
			want = append(want, fmt.Sprintf("%d-%d", round, i))
		}
		h.verify(t, "a", check{"cat /opt/steps", strings.Join(want, "\n")})
		h.must(t, "rm", "a", "--yes")
		h.must(t, "template", "rm", name)
		if out := h.must(t, "snapshot", "list", "-q"); strings.TrimSpace(out) != "" {
			t.Errorf("round %d: snapshots %q are left", round, out)
		}
	}
	left, err := h.client(t).Templates().List(t.Context())
	if err != nil || len(left) != 0 {
		t.Errorf("got %+v, %v, want no template", left, err)
	}
}
