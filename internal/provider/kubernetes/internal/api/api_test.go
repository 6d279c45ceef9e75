package api

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/access"
)

// TestRedirect: the client does not follow redirects of the API server with its token.
func TestRedirect(t *testing.T) {
	t.Parallel()
	thief := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("got a request with %q", r.Header.Get("Authorization"))
	}))
	defer thief.Close()
	front := httptest.NewServer(http.RedirectHandler(thief.URL, http.StatusTemporaryRedirect))
	defer front.Close()
	c, err := Connect(access.Access{Server: front.URL, Token: "secret"}, "boxes")
	if err != nil {
		t.Fatal(err)
	}
	defer c.HTTP.CloseIdleConnections()
	var e *Error
	if err := c.Get(context.Background(), "api/v1/pods", "a", nil); !errors.As(err, &e) || e.Code != http.StatusTemporaryRedirect {
		t.Errorf("got %v, want the redirect as an error", err)
	}
}

func TestQuantity(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"": 0, "10": 10, "10Gi": 10 << 30, "1.5Gi": 3 << 29, "100M": 100e6, "5k": 5000, "x": 0, "Gi": 0} {
		if got := Quantity(text); got != want {
			t.Errorf("%q: got %d, want %d", text, got, want)
		}
	}
}
