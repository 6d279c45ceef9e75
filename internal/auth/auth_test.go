package auth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/golang-jwt/jwt/v5"
	"github.com/google/go-cmp/cmp"
)

func TestValidCredentialsAreAdmitted(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	now := time.Now()
	claims := func(exp, nbf time.Duration) string {
		return sign(t, jwt.SigningMethodRS256, signer(), jwt.MapClaims{"sub": "bob", "exp": now.Add(exp).Unix(), "nbf": now.Add(nbf).Unix()}, nil)
	}
	tests := map[string]struct {
		header string
		want   Identity
	}{
		"signed token":           {"Authorization: Bearer " + goodJWT(t), Identity{Subject: "alice", Via: ViaJWT}},
		"expired within leeway":  {"Authorization: Bearer " + claims(-5*time.Second, -time.Hour), Identity{Subject: "bob", Via: ViaJWT}},
		"not yet, within leeway": {"Authorization: Bearer " + claims(time.Hour, 5*time.Second), Identity{Subject: "bob", Via: ViaJWT}},
		"shared token":           {"Authorization: Bearer " + theToken, Identity{Via: ViaToken, Operator: true}},
		"scheme in lower case":   {"authorization: bearer  " + theToken, Identity{Via: ViaToken, Operator: true}},
		"API key":                {"X-API-Key: " + theKey, Identity{Via: ViaAPIKey, Operator: true}},
		"API key, lower case":    {"x-api-key: " + theKey, Identity{Via: ViaAPIKey, Operator: true}},
		"cookie":                 {"Cookie: " + s.openSession(), Identity{Subject: "alice", Via: ViaCookie}},
		"cookie among others":    {"Cookie: a=b; " + s.openSession() + "; c=d", Identity{Subject: "alice", Via: ViaCookie}},
		"good after a bad cookie": {"Cookie: " + strings.Split(s.openSession(), "=")[0] + "=old; " + s.openSession(),
			Identity{Subject: "alice", Via: ViaCookie}},
	}
	for name, tt := range tests {
		got := s.send("POST /v1/x?a=1&b=2", tt.header, "Origin: http://localhost").seen(t)
		if got.Identity != tt.want || !got.Known || got.URI != "/v1/x?a=1&b=2" {
			t.Errorf("%s: got %+v, want %+v", name, got, tt.want)
		}
	}
	openServer := serve(t, open())
	if got := openServer.send("GET /").seen(t); got.Identity != (Identity{Via: ViaOpen, Operator: true}) {
		t.Errorf("open: got %+v, want the operator", got)
	}
}

func TestOpenHasNoEffectWithCredentials(t *testing.T) {
	t.Parallel()
	c := closed()
	c.Open, c.Insecure = true, true
	if r := serve(t, c).send("GET /"); r.status != 401 {
		t.Errorf("got status %d, want 401", r.status)
	}
}

// Programs behind the guard are not trusted.
func TestCredentialsAreRemoved(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	cookie := s.openSession()
	ticket := s.ticket()
	r := s.send("GET /proxy/3000/?a=%20&ticket="+ticket+"&b", "Authorization: Bearer "+theToken, "X-API-Key: "+theKey,
		"Cookie: theirs=1; "+cookie+"; "+CookiePrefix+"ffffffffffff=other.sandbox", "Cookie: more=2")
	got := r.seen(t)
	if got.URI != "/proxy/3000/?a=%20&b" || got.Query != "a=%20&b" {
		t.Errorf("got target %s and query %s, want them without the ticket", got.URI, got.Query)
	}
	if got.Header.Get("Authorization") != "" || got.Header.Get("X-Api-Key") != "" {
		t.Errorf("got headers %v, want no credentials", got.Header)
	}
	if d := cmp.Diff([]string{"theirs=1", "more=2"}, got.Header["Cookie"]); d != "" {
		t.Error(d)
	}
	for _, secret := range []string{theToken, theKey, ticket, strings.Split(cookie, "=")[1]} {
		if strings.Contains(r.body, secret) {
			t.Errorf("got %s in the handler, want it removed", secret)
		}
	}

	// Other credentials belong to the service behind the guard.
	got = s.send("GET /proxy/3000/?ticket=jira-1", "Authorization: Bearer theirs", "X-API-Key: theirs", "Cookie: "+cookie).seen(t)
	if got.Header.Get("Authorization") != "Bearer theirs" || got.Header.Get("X-Api-Key") != "theirs" || got.Query != "ticket=jira-1" {
		t.Errorf("got %+v, want other credentials unchanged", got)
	}
	got = s.send("GET http://user:pass@localhost/x?y", "X-API-Key: "+theKey).seen(t)
	if got.URI != "/x?y" || got.Path != "/x" {
		t.Errorf("absolute target: got %+v, want /x?y", got)
	}
	// They are also removed from a public request.
	if got = s.send("GET /healthz", "Authorization: Bearer "+theToken).seen(t); got.Header.Get("Authorization") != "" {
		t.Errorf("public: got %+v, want no credentials", got)
	}
}

func TestTicketOpensAPage(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	ticket := s.ticket()
	r := s.send("GET /vnc/index.html?a=1&ticket="+ticket+"&b=2", asPage, "Sec-Fetch-Mode: navigate",
		"Sec-Fetch-Site: cross-site", "Sec-Fetch-Dest: document")
	if r.status != 303 || r.header.Get("Location") != "./index.html?a=1&b=2" || r.header.Get("Cache-Control") != "no-store" {
		t.Fatalf("got status %d and headers %v, want a redirect without the ticket", r.status, r.header)
	}
	set := r.header.Get("Set-Cookie")
	for _, want := range []string{CookiePrefix, "Path=/;", "HttpOnly", "SameSite=Lax", "Max-Age=43200"} {
		if !strings.Contains(set, want) {
			t.Errorf("cookie lacks %s: %s", want, set)
		}
	}
	if strings.Contains(set, "Secure") {
		t.Errorf("got %s, want no Secure, which browsers reject over http", set)
	}
	if r := s.send("GET /vnc/index.html?ticket="+ticket, asPage); r.status != 401 || !strings.Contains(r.body, "has been used") {
		t.Errorf("second use: got status %d %s, want 401", r.status, r.body)
	}
	// Reloading the URL with the used ticket works until the session ends.
	cookie, _, _ := strings.Cut(set, ";")
	if r := s.send("GET /x/?ticket="+ticket, asPage, "Cookie: "+cookie); r.status != 303 || r.header.Get("Location") != "./" {
		t.Errorf("reload: got status %d and headers %v, want a redirect to ./", r.status, r.header)
	}
	// Requests that are not for a page are served without a redirect.
	if r := s.send("GET /v1/file/download?ticket=" + s.ticket()); r.status != 200 || r.header.Get("Set-Cookie") == "" {
		t.Errorf("download: got status %d and headers %v, want 200 and a cookie", r.status, r.header)
	}
	if r := s.send("POST /v1/x?ticket="+s.ticket(), asPage); r.status != 200 ||
		r.seen(t).Identity != (Identity{Subject: "alice", Via: ViaTicket}) {
		t.Errorf("post: got status %d %s, want 200 as alice", r.status, r.body)
	}
	if r := s.send("GET /?ticket="+s.ticket()+"&ticket="+s.ticket(), asPage); r.status != 401 {
		t.Errorf("two tickets: got status %d, want 401", r.status)
	}
	openServer := serve(t, open())
	if r := openServer.send("GET /a?ticket="+openServer.ticket(), asPage); r.status != 303 ||
		r.header.Get("Location") != "./a" || r.header.Get("Set-Cookie") != "" {
		t.Errorf("open: got status %d and headers %v, want a redirect without a cookie", r.status, r.header)
	}
}

func TestTicketNeverRedirectsToAnotherHost(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	for target, want := range map[string]string{
		"//evil.example":              "./evil.example",
		"//evil.example/":             "./",
		"//evil.example/..":           "./..",
		"/%2fevil.example":            "./%2fevil.example",
		`/\evil.example`:              "./%5Cevil.example",
		"/https://evil.example":       "./evil.example",
		"/https:evil.example":         "./https:evil.example",
		"/a%0d%0aSet-Cookie:x=y":      "./a%0d%0aSet-Cookie:x=y",
		"http://evil.example/x":       "./x",
		"http://evil.example//evil.y": "./evil.y",
	} {
		r, err := s.raw(message("GET "+target+"?ticket="+s.ticket(), asPage))
		if err != nil || r.status != 303 || r.header.Get("Location") != want {
			t.Errorf("%s: got status %d to %q, want 303 to %q (%v)", target, r.status, r.header.Get("Location"), want, err)
		}
	}
}

func TestTicketExpires(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	ticket, life, err := s.Issue(NewContext(context.Background(), Identity{Subject: "alice"}))
	if err != nil || life != 30*time.Second {
		t.Fatalf("got lifetime %v and error %v, want 30s", life, err)
	}
	s.clock.advance(life)
	if r := s.send("GET /?ticket=" + ticket); r.status != 401 {
		t.Errorf("got status %d, want 401", r.status)
	}
}

func TestTicketsAreUsedOnce(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	for range 5 {
		request := message("GET /?ticket=" + s.ticket())
		results := make(chan int, 24)
		var wg sync.WaitGroup
		for range cap(results) {
			wg.Go(func() {
				r, err := s.raw(request)
				if err != nil {
					r.status = -1
				}
				results <- r.status
			})
		}
		wg.Wait()
		close(results)
		count := map[int]int{}
		for status := range results {
			count[status]++
		}
		if count[200] != 1 || count[401] != cap(results)-1 {
			t.Errorf("got statuses %v, want 200 once and 401 otherwise", count)
		}
	}
}

func TestTicketStoreIsBounded(t *testing.T) {
	t.Parallel()
	var c clock
	g := New(Config{Token: theToken, Now: c.now})
	ctx := context.Background()
	for range 3 * maxTickets { // used tickets are removed
		ticket, _, err := g.Issue(ctx)
		if err != nil {
			t.Fatal(err)
		}
		g.tickets.use(ticket)
	}
	for range maxTickets {
		if _, _, err := g.Issue(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := g.Issue(ctx); !errors.Is(err, ErrTooManyTickets) {
		t.Errorf("got error %v, want ErrTooManyTickets", err)
	}
	c.advance(time.Minute)
	if _, _, err := g.Issue(ctx); err != nil {
		t.Errorf("after they expired: got error %v, want a ticket", err)
	}
	if n := len(g.tickets.byHash); n != 1 || g.tickets.byAge.Len() != 1 {
		t.Errorf("got %d tickets in the store, want 1", n)
	}
}

func TestCookieForgeries(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	cookie := s.openSession()
	name, value, _ := strings.Cut(cookie, "=")
	payload, signature, _ := strings.Cut(value, ".")
	elsewhere := serve(t, closed())
	later := New(closed()).cookies.seal(Identity{Subject: "alice"}, session{end: time.Now().Add(time.Hour)})
	flipped := []byte(payload)
	flipped[3] ^= 1
	forgeries := map[string]string{
		"empty":               "",
		"no signature":        payload,
		"empty signature":     payload + ".",
		"payload changed":     string(flipped) + "." + signature,
		"signature cut":       value[:len(value)-1],
		"signature repeated":  value + "." + signature,
		"padding":             value + "=",
		"of another start":    later,
		"of another server":   strings.SplitN(elsewhere.openSession(), "=", 2)[1],
		"quoted":              `"` + value + `"`,
		"long":                strings.Repeat("A", 5000) + "." + signature,
		"only a dot":          ".",
		"signed empty string": "." + signature,
	}
	for label, v := range forgeries {
		if r := s.send("GET /", "Cookie: "+name+"="+v); r.status != 401 {
			t.Errorf("%s: got status %d, want 401", label, r.status)
		}
	}
	if r := s.send("GET /", "Cookie: "+CookiePrefix+"000000000000="+value); r.status != 401 {
		t.Errorf("under another name: got status %d, want 401", r.status)
	}
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 200 {
		t.Errorf("the real one: got status %d, want 200", r.status)
	}
	s.clock.advance(sessionLife + time.Second)
	if r := s.send("GET /", "Cookie: "+cookie); r.status != 401 {
		t.Errorf("expired: got status %d, want 401", r.status)
	}
}

func TestCookieIsScopedToTheSandbox(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	first := s.openSession("Host: localhost:8080")
	second := s.openSession("Host: localhost:8081")
	if strings.Split(first, "=")[0] == strings.Split(second, "=")[0] {
		t.Errorf("two sandboxes on one host: got the cookies %s and %s, want different names", first, second)
	}
	r := s.send("GET /?ticket="+s.ticket(), "X-Forwarded-Prefix: /sandbox/a/", "X-Forwarded-Proto: https", "X-Forwarded-Host: hub.example")
	set := r.header.Get("Set-Cookie")
	if !strings.Contains(set, "Path=/sandbox/a;") || !strings.Contains(set, "Secure") {
		t.Errorf("behind a proxy: got cookie %s, want its path and Secure", set)
	}
	c := closed()
	c.CookieName = "mine"
	if got := serve(t, c).openSession(); !strings.HasPrefix(got, "mine=") {
		t.Errorf("configured name: got cookie %s, want mine", got)
	}
}

// A browser opens a link with a ticket, and then the page and its requests.
func TestBrowserSession(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar, Transport: &http.Transport{}}
	t.Cleanup(client.CloseIdleConnections)
	get := func(url string) (int, string, string) {
		req, err := http.NewRequest("GET", url, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", "text/html")
		res, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, res.Request.URL.String(), string(body)
	}
	base := "http://" + s.addr
	if status, _, body := get(base + "/terminal"); status != 401 || !strings.Contains(body, "/tickets") || !strings.Contains(body, "<html") {
		t.Errorf("signed out: got status %d %s, want a page that explains tickets", status, body)
	}
	if status, url, _ := get(base + "/terminal?ticket=" + s.ticket()); status != 200 || url != base+"/terminal" {
		t.Errorf("with a ticket: got status %d at %s, want 200 at the URL without it", status, url)
	}
	if status, _, body := get(base + "/v1/sandbox"); status != 200 || !strings.Contains(body, `"Via":"cookie"`) {
		t.Errorf("afterwards: got status %d %s, want 200 by cookie", status, body)
	}
}

func TestWebSockets(t *testing.T) {
	t.Parallel()
	g := New(closed())
	s := serve(t, Config{Token: theToken})
	mux := g.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := websocket.Accept(w, r, nil)
		if err != nil {
			return
		}
		_ = c.Write(r.Context(), websocket.MessageText, []byte(r.RequestURI))
		_ = c.Close(websocket.StatusNormalClosure, "")
	}))
	inner := serveHandler(t, mux)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()

	if _, res, err := websocket.Dial(ctx, "ws://"+inner+"/v1/shell/ws", nil); err == nil || res.StatusCode != 401 {
		t.Errorf("without credentials: got error %v, want status 401", err)
	}
	if r := s.send("GET /v1/shell/ws", webSocket); r.status != 401 || !strings.HasPrefix(r.header.Get("Content-Type"), "application/json") {
		t.Errorf("raw, without credentials: got status %d, want 401 in JSON", r.status)
	}
	ticket, _, err := g.Issue(NewContext(ctx, Identity{Subject: "alice"}))
	if err != nil {
		t.Fatal(err)
	}
	c, res, err := websocket.Dial(ctx, "ws://"+inner+"/v1/shell/ws?a=1&ticket="+ticket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	if !strings.Contains(res.Header.Get("Set-Cookie"), CookiePrefix) {
		t.Errorf("handshake: got headers %v, want a cookie", res.Header)
	}
	if _, data, err := c.Read(ctx); err != nil || string(data) != "/v1/shell/ws?a=1" {
		t.Errorf("got %q and error %v, want the target without the ticket", data, err)
	}
	if _, res, err := websocket.Dial(ctx, "ws://"+inner+"/v1/shell/ws?ticket="+ticket, nil); err == nil || res.StatusCode != 401 {
		t.Errorf("ticket used twice: got error %v, want status 401", err)
	}
	foreign := &websocket.DialOptions{HTTPHeader: http.Header{"Origin": {"http://evil.example"}, "Authorization": {"Bearer " + theToken}}}
	if _, res, err := websocket.Dial(ctx, "ws://"+inner+"/v1/shell/ws", foreign); err == nil || res.StatusCode != 403 {
		t.Errorf("foreign page: got error %v, want status 403", err)
	}
}

func TestAllowedOrigins(t *testing.T) {
	t.Parallel()
	c := closed()
	c.AllowedOrigins = []string{"https://App.example/"}
	s := serve(t, c)
	r := s.send("OPTIONS /v1/x", "Origin: https://app.example", "Access-Control-Request-Method: DELETE",
		"Access-Control-Request-Headers: authorization, x-api-key", "Access-Control-Request-Private-Network: true")
	want := map[string]string{
		"Access-Control-Allow-Origin": "https://app.example", "Access-Control-Allow-Credentials": "true",
		"Access-Control-Allow-Headers": "authorization, x-api-key", "Access-Control-Allow-Private-Network": "true",
	}
	if r.status != 204 || !strings.Contains(r.header.Get("Access-Control-Allow-Methods"), "DELETE") ||
		!strings.Contains(strings.Join(r.header["Vary"], ","), "Origin") {
		t.Errorf("preflight: got status %d and headers %v, want 204 and CORS", r.status, r.header)
	}
	for k, v := range want {
		if r.header.Get(k) != v {
			t.Errorf("preflight %s: got %q, want %q", k, r.header.Get(k), v)
		}
	}
	if s.reached.Load() != 0 {
		t.Errorf("got %d requests in the handler, want 0", s.reached.Load())
	}
	r = s.send("OPTIONS /v1/x", "Origin: https://app.example", "Access-Control-Request-Method: GET", "Access-Control-Request-Headers: a\x7fb")
	if r.status == 204 && r.header.Get("Access-Control-Allow-Headers") != "" {
		t.Errorf("invalid header names: got headers %v, want no echo", r.header)
	}
	// A page must be able to read the reason of a rejection.
	if r = s.send("GET /v1/x", "Origin: https://app.example"); r.status != 401 ||
		r.header.Get("Access-Control-Allow-Origin") != "https://app.example" {
		t.Errorf("rejection: got status %d and headers %v, want 401 and CORS", r.status, r.header)
	}
	if r = s.send("GET /v1/x", "X-API-Key: "+theKey); r.header.Get("Access-Control-Allow-Origin") != "" || r.header.Get("Vary") != "Origin" {
		t.Errorf("no origin: got headers %v, want Vary only", r.header)
	}
	if r = serve(t, closed()).send("OPTIONS /v1/x", "Origin: https://app.example", "Access-Control-Request-Method: GET"); r.status != 403 {
		t.Errorf("off by default: got status %d, want 403", r.status)
	}
}

func TestRejectionsNameASolution(t *testing.T) {
	t.Parallel()
	s := serve(t, closed())
	r := s.send("GET /v1/x?token=abc")
	for _, want := range []string{`"detail":`, "Authorization: Bearer <token>", "X-API-Key", "?ticket=", "query is never accepted"} {
		if !strings.Contains(r.body, want) {
			t.Errorf("401 lacks %q: %s", want, r.body)
		}
	}
	if r.header.Get("Cache-Control") != "no-store" || r.header.Get("WWW-Authenticate") == "" {
		t.Errorf("401: got headers %v, want no-store and WWW-Authenticate", r.header)
	}
	page := s.send(`GET /"><script>alert(1)</script>`, asPage, `X-Forwarded-Host: <script>`,
		"X-Forwarded-Prefix: /<b>", "Authorization: Bearer <script>")
	if page.status != 401 && page.status != 400 || strings.Contains(page.body, "<script") || strings.Contains(page.body, "<b>") {
		t.Errorf("got status %d %s, want no text of the request", page.status, page.body)
	}
	if page := s.send("GET /", asPage, "X-Forwarded-Prefix: /sandbox/a",
		"Host: hub.example:10000"); !strings.Contains(page.body, "http://hub.example:10000/sandbox/a/tickets") {
		t.Errorf("got %s, want the URL for tickets", page.body)
	}
	onlyKey := serve(t, Config{APIKey: theKey})
	if page := onlyKey.send("GET /", asPage); !strings.Contains(page.body, "X-API-Key: $KEY") {
		t.Errorf("with a key only: got %s, want X-API-Key", page.body)
	}
	if !strings.Contains(s.log.String(), "request rejected") || strings.Contains(s.log.String(), "token=abc") {
		t.Errorf("got log %s, want the rejection without the token", s.log.String())
	}
	for _, c := range []Config{closed()} {
		if all := fmt.Sprintf("%v %+v %#v %s", c, c, c, c); strings.Contains(all, "hunter") {
			t.Errorf("got %s, want no secret", all)
		}
	}
}
