package cdp

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// TestBrowser runs tests that share one Chromium and keep it running.
func TestBrowser(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	for name, test := range map[string]func(*testing.T, *browser){
		"evaluate":             testEvaluate,
		"errors":               testErrors,
		"concurrent calls":     testConcurrentCalls,
		"targets":              testTargets,
		"large reply":          testLargeReply,
		"events go to whom":    testEventsGoToTheirSession,
		"stalled subscriber":   testStalledSubscriber,
		"closed target":        testClosedTargetEndsItsCalls,
		"end of context":       testEndOfContextLeavesTheConnection,
		"close ends all calls": testCloseEndsAllCalls,
	} {
		t.Run(name, func(t *testing.T) { test(t, b) })
	}
}

func testEvaluate(t *testing.T, b *browser) {
	c := b.dial(t)
	_, s := page(t, c)
	for script, want := range map[string]string{
		`1 + 1`:              `2`,
		`"Grüße, 世界 🎉"`:      `"Grüße, 世界 🎉"`,
		`({a: [1, null]})`:   `{"a":[1,null]}`,
		`Promise.resolve(7)`: `7`,
		`0 / 0`:              `"NaN"`,
		`-1 / 0`:             `"-Infinity"`,
		`10n ** 20n`:         `"100000000000000000000n"`,
		`null`:               `null`,
		`undefined`:          ``,
	} {
		var got json.RawMessage
		if err := c.Evaluate(testContext(t), s, script, &got); err != nil || !sameJSON(string(got), want) {
			t.Errorf("%s is %s (%v), want %s", script, got, err, want)
		}
	}
	for script, want := range map[string]string{
		`throw new Error("oh no")`:               "Error: oh no",
		`Promise.reject(new TypeError("later"))`: "TypeError: later",
		`throw "a string"`:                       "a string",
		`this is no script`:                      "SyntaxError",
	} {
		var thrown *EvalError
		if err := c.Evaluate(testContext(t), s, script, nil); !errors.As(err, &thrown) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s ended with %v, want %s", script, err, want)
		}
	}
	var number int
	if err := c.Evaluate(testContext(t), s, `"text"`, &number); err == nil {
		t.Error("a string was decoded into a number")
	}
}

// sameJSON ignores how characters are escaped.
func sameJSON(a, b string) bool {
	var x, y any
	return a == b || json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

func testErrors(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	var refused *Error
	err := c.Call(ctx, Browser, "No.suchMethod", nil, nil)
	if !errors.As(err, &refused) || refused.Code == 0 || !strings.Contains(err.Error(), "No.suchMethod") {
		t.Errorf("an unknown method: %v, want an error of the browser that names No.suchMethod", err)
	}
	if err := c.Call(ctx, "no session", "Runtime.enable", nil, nil); !errors.Is(err, ErrDetached) {
		t.Errorf("an unknown session: %v, want %v", err, ErrDetached)
	}
	if err := c.CloseTarget(ctx, "no target"); !errors.As(err, &refused) {
		t.Errorf("an unknown target: %v, want an error of the browser", err)
	}
	if err := c.Call(ctx, Browser, "Browser.getVersion", func() {}, nil); err == nil {
		t.Error("a function was sent")
	}
	if _, err := Dial(ctx, "ws://127.0.0.1:1/devtools/browser/none", Config{}); err == nil {
		t.Error("connected to a browser that does not exist")
	}
	if _, err := b.pipe.Open(ctx, "no target"); !errors.As(err, &refused) {
		t.Errorf("a connection to an unknown target: %v, want an error of the browser", err)
	}
}

func testConcurrentCalls(t *testing.T, b *browser) {
	c := b.dial(t)
	_, s := page(t, c)
	var all sync.WaitGroup
	for worker := range 50 {
		all.Go(func() {
			for i := range 20 {
				var got int
				// Replies arrive out of order, because some scripts wait.
				script := fmt.Sprintf("new Promise(ok => setTimeout(ok, %d, %d))", (worker*i)%3, worker*1000+i)
				if err := c.Evaluate(testContext(t), s, script, &got); err != nil || got != worker*1000+i {
					t.Errorf("worker %d call %d: %d, %v, want %v", worker, i, got, err, worker*1000+i)
				}
			}
		})
	}
	all.Wait()
}

func testTargets(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	ids := make([]string, 20)
	var all sync.WaitGroup
	for i := range ids {
		all.Go(func() {
			id, err := c.CreateTarget(ctx, NewTarget{URL: fmt.Sprintf("data:text/html,<title>page %d</title>", i)})
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = id
			s, err := c.Attach(ctx, id)
			if err != nil {
				t.Error(err)
				return
			}
			var got int
			if err := c.Evaluate(ctx, s, fmt.Sprintf("window.mine = %d", i), &got); err != nil || got != i {
				t.Errorf("page %d: %d, %v, want %v", i, got, err, i)
			}
			if err := c.Detach(ctx, s); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	list, err := c.Targets(ctx)
	must(t, err)
	for i, id := range ids {
		if !slices.ContainsFunc(list, func(t Target) bool { return t.ID == id && t.Type == "page" }) {
			t.Errorf("targets are %v, want page %d with id %s among them", list, i, id)
		}
	}
	must(t, c.ActivateTarget(ctx, ids[3]))
	destroyed := c.Subscribe(Filter{Methods: []string{"Target.targetDestroyed"}})
	defer destroyed.Close()
	must(t, c.Call(ctx, Browser, "Target.setDiscoverTargets", map[string]any{"discover": true}, nil))
	left := map[string]bool{}
	for _, id := range ids {
		left[id] = true
		must(t, c.CloseTarget(ctx, id))
	}
	for len(left) > 0 {
		e, err := destroyed.Next(ctx)
		must(t, err)
		var p struct{ TargetID string }
		must(t, e.Decode(&p))
		delete(left, p.TargetID)
	}
}

func testLargeReply(t *testing.T, b *browser) {
	c := b.dial(t)
	_, s := page(t, c)
	const n = 50 << 20
	var got string
	must(t, c.Evaluate(testContext(t), s, fmt.Sprintf(`"x".repeat(%d)`, n), &got))
	if len(got) != n {
		t.Errorf("got %d bytes, want %d", len(got), n)
	}
	var shot struct{ Data string }
	must(t, c.Call(testContext(t), s, "Page.captureScreenshot", map[string]any{"format": "png"}, &shot))
	if raw, err := base64.StdEncoding.DecodeString(shot.Data); err != nil || !strings.HasPrefix(string(raw), "\x89PNG") {
		t.Errorf("the screenshot begins with %.8q, %v, want a PNG", raw, err)
	}
	var length int
	if err := c.Evaluate(testContext(t), s, fmt.Sprintf("%q.length", strings.Repeat("y", 5<<20)), &length); err != nil || length != 5<<20 {
		t.Errorf("a large script: %d, %v, want length %v", length, err, 5<<20)
	}
}

func testEventsGoToTheirSession(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	var sessions [3]SessionID
	var subs [3]*Subscription
	everything := c.Subscribe(Filter{AllSessions: true, Methods: []string{"Runtime.consoleAPICalled"}})
	defer everything.Close()
	for i := range sessions {
		_, sessions[i] = page(t, c)
		subs[i] = c.Subscribe(Filter{Session: sessions[i], Methods: []string{"Runtime.consoleAPICalled"}})
		defer subs[i].Close()
		must(t, c.Call(ctx, sessions[i], "Runtime.enable", nil, nil))
	}
	for i, s := range sessions {
		must(t, c.Evaluate(ctx, s, fmt.Sprintf("console.log(%d)", i), nil))
	}
	for i, sub := range subs {
		e, err := sub.Next(ctx)
		must(t, err)
		var p struct{ Args []struct{ Value int } }
		must(t, e.Decode(&p))
		if e.Session != sessions[i] || len(p.Args) != 1 || p.Args[0].Value != i {
			t.Errorf("session %d received %s %s, want %s with argument %d", i, e.Session, e.Params, sessions[i], i)
		}
	}
	for range sessions {
		_, err := everything.Next(ctx)
		must(t, err)
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if e, err := everything.Next(short); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("one event too many: %v, %v, want context.DeadlineExceeded", e, err)
	}
}

func testStalledSubscriber(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	_, s := page(t, c)
	const flood, room = 5000, 100
	stalled := c.Subscribe(Filter{Session: s, Methods: []string{"Runtime.consoleAPICalled"}, MaxEvents: room})
	defer stalled.Close()
	must(t, c.Call(ctx, s, "Runtime.enable", nil, nil))
	must(t, c.Evaluate(ctx, s, fmt.Sprintf("for (let i = 0; i < %d; i++) console.log(i)", flood), nil))
	// The connection still works.
	for range 10 {
		must(t, c.Evaluate(ctx, s, "1", nil))
	}
	if n := stalled.Dropped(); n != flood-room {
		t.Errorf("%d events were dropped, want %d", n, flood-room)
	}
	for want := flood - room; want < flood; want++ {
		e, err := stalled.Next(ctx)
		must(t, err)
		var p struct{ Args []struct{ Value int } }
		must(t, e.Decode(&p))
		if p.Args[0].Value != want {
			t.Fatalf("received event %d, want %d: the newest must be kept", p.Args[0].Value, want)
		}
	}
}

func testClosedTargetEndsItsCalls(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	id, s := page(t, c)
	sub := c.Subscribe(Filter{Session: s})
	defer sub.Close()
	failed := make(chan error, 1)
	go func() { failed <- c.Evaluate(ctx, s, "new Promise(() => {})", nil) }()
	must(t, c.Evaluate(ctx, s, "1", nil)) // the endless call was sent, or will be sent to an ended session
	must(t, c.CloseTarget(ctx, id))
	if err := <-failed; err == nil || ctx.Err() != nil || errors.Is(err, ErrClosed) {
		t.Errorf("the call ended with %v, want an error of the session", err)
	}
	for {
		_, err := sub.Next(ctx)
		if err != nil {
			if !errors.Is(err, ErrDetached) {
				t.Errorf("the subscription ended with %v, want %v", err, ErrDetached)
			}
			break
		}
	}
	if err := c.Evaluate(ctx, s, "1", nil); !errors.Is(err, ErrDetached) {
		t.Errorf("a later call ended with %v, want %v", err, ErrDetached)
	}
}

func testEndOfContextLeavesTheConnection(t *testing.T, b *browser) {
	c := b.dial(t)
	_, s := page(t, c)
	for range 20 {
		ctx, cancel := context.WithTimeout(testContext(t), time.Millisecond)
		if err := c.Evaluate(ctx, s, "new Promise(() => {})", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the call ended with %v, want context.DeadlineExceeded", err)
		}
		cancel()
	}
	must(t, c.Evaluate(testContext(t), s, "1", nil))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pending) != 0 {
		t.Errorf("%d calls are still pending, want none", len(c.pending))
	}
}

func testCloseEndsAllCalls(t *testing.T, b *browser) {
	c := b.dial(t)
	ctx := testContext(t)
	_, s := page(t, c)
	sub := c.Subscribe(Filter{AllSessions: true})
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := c.Evaluate(ctx, s, "new Promise(() => {})", nil); !errors.Is(err, ErrClosed) {
				t.Errorf("the call ended with %v, want %v", err, ErrClosed)
			}
		})
	}
	must(t, c.Close())
	all.Wait()
	must(t, c.Close())
	for {
		if _, err := sub.Next(ctx); err != nil {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("the subscription ended with %v, want %v", err, ErrClosed)
			}
			break
		}
	}
	late := c.Subscribe(Filter{})
	if _, err := late.Next(ctx); !errors.Is(err, ErrClosed) {
		t.Errorf("a late subscription ended with %v, want %v", err, ErrClosed)
	}
}

func TestKilledBrowserEndsCallsAndSubscriptions(t *testing.T) {
	t.Parallel()
	b := startBrowser(t)
	c := b.dial(t)
	ctx := testContext(t)
	_, s := page(t, c)
	sub := c.Subscribe(Filter{AllSessions: true})
	defer sub.Close()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := c.Evaluate(ctx, s, "new Promise(() => {})", nil); !errors.Is(err, ErrClosed) {
				t.Errorf("a call in flight ended with %v, want %v", err, ErrClosed)
			}
		})
	}
	must(t, c.Evaluate(ctx, s, "1", nil))
	b.kill()
	<-c.Done()
	all.Wait()
	if err := c.Call(ctx, Browser, "Browser.getVersion", nil, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("a later call ended with %v, want %v", err, ErrClosed)
	}
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("Err is %v, want %v", c.Err(), ErrClosed)
	}
	if ctx.Err() != nil {
		t.Error("the calls ended only with their context")
	}
}
