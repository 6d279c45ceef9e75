package auth

import (
	"net/http"
	"net/url"
	"strings"
)

const (
	keyHeader    = "X-Aio-Api-Key"
	keyParameter = "api_key"
	// originalURI carries the target of the request that a reverse proxy authorizes at
	// authPath, as nginx does with auth_request.
	originalURI = "X-Original-Uri"
	authPath    = "/auth"
)

// sandboxKey describes how a request carried a key of the sandbox.
type sandboxKey struct {
	valid bool
	query bool   // in the URL
	fault string // why a key is not valid
}

// takeKey removes keys of the sandbox from a request, from all places where clients of the
// public image send them. Other values remain, because they may be for a preview.
func (k *keyring) takeKey(r *http.Request) (sent sandboxKey) {
	if len(k.sandbox) == 0 {
		return sent
	}
	for _, name := range []string{keyHeader, "X-Api-Key"} {
		for _, value := range r.Header[name] {
			switch {
			case k.isKey(value):
				sent.valid = true
				r.Header.Del(name)
			case name == keyHeader:
				sent.fault = "invalid X-AIO-API-Key"
			}
		}
	}
	if scheme, token, ok := strings.Cut(r.Header.Get("Authorization"), " "); ok &&
		strings.EqualFold(scheme, "Bearer") && k.isKey(strings.TrimLeft(token, " ")) {
		sent.valid = true
		r.Header.Del("Authorization")
	}
	var found []string
	found, r.URL.RawQuery = cutParameter(r.URL.RawQuery, keyParameter, k.isKey)
	if len(found) > 0 {
		sent.valid, sent.query = true, true
		r.URL.ForceQuery = false
		r.RequestURI = r.URL.RequestURI()
	} else if r.URL.Query().Has(keyParameter) {
		sent.fault = "invalid api_key"
	}
	return sent
}

func (k *keyring) isKey(text string) bool {
	ok := false
	for _, key := range k.sandbox {
		ok = equalsSecret(key, text) || ok
	}
	return ok
}

// cutParameter returns the values of a parameter that match, and the query without them. Other
// parameters remain byte for byte, in order.
func cutParameter(query, name string, match func(string) bool) (values []string, rest string) {
	if query == "" {
		return nil, ""
	}
	var kept []string
	for part := range strings.SplitSeq(query, "&") {
		key, value, _ := strings.Cut(part, "=")
		key, _ = url.QueryUnescape(key)
		value, _ = url.QueryUnescape(value)
		if key == name && match(value) {
			values = append(values, value)
		} else {
			kept = append(kept, part)
		}
	}
	return values, strings.Join(kept, "&")
}

// adoptOriginal adds the credentials in the URL that a reverse proxy authorizes.
func adoptOriginal(r *http.Request) {
	original := r.Header.Get(originalURI)
	if original == "" || r.URL.Path != authPath || r.Method != http.MethodGet {
		return
	}
	_, query, _ := strings.Cut(original, "?")
	tickets, _ := cutParameter(query, "ticket", isTicket)
	keys, _ := cutParameter(query, keyParameter, func(string) bool { return true })
	q := r.URL.Query()
	for _, t := range tickets {
		q.Add("ticket", t)
	}
	for _, k := range keys {
		q.Add(keyParameter, k)
	}
	r.URL.RawQuery = q.Encode()
	r.RequestURI = r.URL.RequestURI()
}
