package cdp

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// ParseCookies parses cookies from JSON: a list, or an object with a list such as Playwright's storage state. Text that is
// not JSON is the path of a file with such JSON.
func ParseCookies(text string) ([]map[string]any, error) {
	data := []byte(strings.TrimSpace(text))
	if len(data) == 0 {
		return nil, nil
	}
	if data[0] != '[' && data[0] != '{' {
		var err error
		if data, err = os.ReadFile(string(data)); err != nil {
			return nil, fmt.Errorf("read cookies: %w; use a JSON list or the path of a file with a JSON list", err)
		}
	}
	var state struct {
		Cookies []map[string]any `json:"cookies"`
	}
	err := json.Unmarshal(data, &state.Cookies)
	if err != nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil {
		// The error of encoding/json would contain the value of a cookie.
		return nil, errors.New("invalid cookies: use a JSON list of objects with name, value, and url or domain")
	}
	list := []map[string]any{}
	for i, c := range state.Cookies {
		p, err := CookieParam(c)
		if err != nil {
			return nil, fmt.Errorf("invalid cookies: entry %d: %w", i+1, err)
		}
		list = append(list, p)
	}
	return list, nil
}

// SetCookies sets cookies in the browser. params select a browser context.
func (c *Client) SetCookies(ctx context.Context, params map[string]any, cookies []map[string]any) error {
	if len(cookies) == 0 {
		return nil
	}
	params["cookies"] = cookies
	if err := c.Call(ctx, Browser, "Storage.setCookies", params, nil); err != nil {
		return op.Errorf(op.Invalid, "the browser rejected the cookies: %w; check domain, path and sameSite", err)
	}
	return nil
}

// CookieParam converts a cookie in one of the common formats to the browser's.
func CookieParam(c map[string]any) (map[string]any, error) {
	b, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	var k struct {
		Name, Value, URL, Domain, Path, SameSite, Same_Site string
		Expires, Expiry, ExpirationDate                     *float64
		HTTPOnly, HTTP_Only, Secure                         bool
	}
	if err := json.Unmarshal(b, &k); err != nil {
		return nil, op.Errorf(op.Invalid, "invalid cookie: %w", err)
	}
	if k.SameSite == "" {
		k.SameSite = k.Same_Site
	}
	switch {
	case k.Name == "":
		return nil, op.Errorf(op.Invalid, "the cookie has no name")
	case k.URL == "" && k.Domain == "":
		return nil, op.Errorf(op.Invalid, "the cookie %q has neither url nor domain", k.Name)
	}
	p := map[string]any{"name": k.Name, "value": k.Value, "httpOnly": k.HTTPOnly || k.HTTP_Only, "secure": k.Secure}
	if k.URL != "" {
		p["url"] = k.URL
	}
	if k.Domain != "" {
		p["domain"] = k.Domain
		if k.Path == "" {
			k.Path = "/"
		}
	}
	if k.Path != "" {
		p["path"] = k.Path
	}
	for _, at := range []*float64{k.Expires, k.Expiry, k.ExpirationDate} {
		if at != nil && *at >= 0 {
			p["expires"] = *at
		}
	}
	switch strings.ToLower(k.SameSite) {
	case "strict":
		p["sameSite"] = "Strict"
	case "lax":
		p["sameSite"] = "Lax"
	case "none", "no_restriction":
		p["sameSite"] = "None"
	case "", "unspecified":
	default:
		return nil, op.Errorf(op.Invalid, "the cookie %q has the invalid sameSite %q; use Strict, Lax or None", k.Name, k.SameSite)
	}
	return p, nil
}
