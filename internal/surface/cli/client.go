package cli

import (
	"errors"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
)

// Address returns the URL of a target on the server.
func (c *Client) Address(target string) string {
	if strings.HasPrefix(c.URL, "unix:") {
		return "http://localhost" + target
	}
	return strings.TrimSuffix(c.URL, "/") + target
}

// Ready completes the client before its first use.
func (c *Client) Ready() error {
	if c.Resolve == nil {
		return nil
	}
	return c.Resolve()
}

// explain adds to the error of a request without valid credentials what to do.
func (c *Client) explain(err error, status int) error {
	if e, ok := errors.AsType[*Error](err); ok && status == http.StatusUnauthorized && c.SignIn != "" {
		return &Error{e.Code, e.Msg + "; " + c.SignIn}
	}
	return err
}

// Do sends a request to the server, with the credentials.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.Key != "" {
		req.Header.Set("X-API-Key", c.Key)
	}
	return c.do(req)
}

// Noun returns the command of a noun, which it adds unless it exists.
func Noun(root *cobra.Command, word string) *cobra.Command { return addNoun(root, word, word) }
