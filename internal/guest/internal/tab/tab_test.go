package tab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// openPage connects to a browser with one page, whose document has the loader "first" when the connection begins. The browser
// sends events after its list of frames, and replies to the first command of the setup last: goroutines that wait for
// the setup see the list later than the events, as on a busy machine.
func openPage(t *testing.T, events ...string) *Browser {
	t.Helper()
	ended := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(ended)
		ws, err := websocket.Accept(w, r, nil)
		if err != nil {
			t.Error(err)
			return
		}
		defer ws.CloseNow()
		send := func(format string, args ...any) {
			_ = ws.Write(r.Context(), websocket.MessageText, fmt.Appendf(nil, format, args...)) // the client may have disconnected
		}
		late := 0
		for {
			var c struct {
				ID      int           `json:"id"`
				Session cdp.SessionID `json:"sessionId"`
				Method  string        `json:"method"`
			}
			_, msg, err := ws.Read(r.Context())
			if err != nil || json.Unmarshal(msg, &c) != nil {
				return
			}
			result := "{}"
			switch {
			case c.Method == "Target.setAutoAttach" && c.Session == cdp.Browser:
				send(`{"method":"Target.attachedToTarget","params":{"sessionId":"s","targetInfo":{"targetId":"p","type":"page","url":"http://site/"}}}`)
			case c.Method == "Page.enable":
				late = c.ID
				continue
			case c.Method == "Page.getFrameTree":
				result = `{"frameTree":{"frame":{"id":"p","loaderId":"first","url":"http://site/"}}}`
			}
			send(`{"id":%d,"sessionId":%q,"result":%s}`, c.ID, c.Session, result)
			if c.Method == "Fetch.enable" { // the last command of the setup
				for _, e := range events {
					send("%s", e)
				}
				send(`{"id":%d,"sessionId":"s","result":{}}`, late)
			}
		}
	}))
	b, err := Open(testContext(t), Config{Connect: func(ctx context.Context, c cdp.Config) (*cdp.Client, error) {
		return cdp.Dial(ctx, "ws"+strings.TrimPrefix(srv.URL, "http"), c)
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.Close()
		<-ended
		srv.Close()
	})
	return b
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func lifecycle(loader, name string) string {
	return fmt.Sprintf(`{"method":"Page.lifecycleEvent","sessionId":"s","params":{"frameId":"p","loaderId":%q,"name":%q}}`, loader, name)
}

const (
	scriptContext = `{"method":"Runtime.executionContextCreated","sessionId":"s","params":{"context":{"id":1,` +
		`"auxData":{"isDefault":true,"frameId":"p"}}}}`
	navigated = `{"method":"Page.frameNavigated","sessionId":"s","params":{"frame":{"id":"p",` +
		`"loaderId":"second","url":"http://site/next"}}}`
)

// TestPageThatLoadsDuringTheSetup checks that AwaitLoad returns if the page was loaded while the connection to it was set up,
// as happens when a restarted browser restores its tabs.
func TestPageThatLoadsDuringTheSetup(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		events []string
		url    string
	}{
		"before":     {[]string{lifecycle("first", "load"), scriptContext}, "http://site/"},
		"meanwhile":  {[]string{lifecycle("first", "commit"), scriptContext, lifecycle("first", "load")}, "http://site/"},
		"another":    {[]string{scriptContext, lifecycle("second", "init"), navigated, lifecycle("second", "load")}, "http://site/next"},
		"no scripts": {[]string{lifecycle("second", "init"), navigated, lifecycle("second", "load")}, "http://site/next"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			page := openPage(t, c.events...).Tabs()[0]
			// The setup is complete, so no event will follow.
			ctx, cancel := context.WithCancel(testContext(t))
			cancel()
			if err := page.AwaitLoad(ctx, Load); err != nil {
				t.Errorf("wait for load: %v, want no error", err)
			}
			if got := page.Main().URL(); got != c.url {
				t.Errorf("the page is at %q, want %q", got, c.url)
			}
		})
	}
	t.Run("not yet", func(t *testing.T) {
		t.Parallel()
		page := openPage(t, lifecycle("first", "load"), lifecycle("second", "init"), navigated).Tabs()[0]
		ctx, cancel := context.WithCancel(testContext(t))
		cancel()
		if err := page.AwaitLoad(ctx, Load); !errors.Is(err, context.Canceled) {
			t.Errorf("wait for load: %v, want a wait for the next document", err)
		}
	})
}
