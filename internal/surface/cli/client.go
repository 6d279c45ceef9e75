package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/auth/peer"
)

// Address returns the URL of a target on the server.
func (c *Client) Address(target string) string {
	if strings.HasPrefix(c.URL, "unix:") {
		return "http://localhost" + target
	}
	return strings.TrimSuffix(c.URL, "/") + target
}

// Ready resolves the fields of the client before its first use.
func (c *Client) Ready() error {
	if c.Resolve == nil {
		return nil
	}
	return c.Resolve()
}

// Transport returns a transport to the server for other clients.
func (c *Client) Transport() *http.Transport {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, DialContext: c.dial, ForceAttemptHTTP2: true,
		MaxIdleConnsPerHost: maxIdle, IdleConnTimeout: time.Minute}
}

// maxIdle keeps enough connections for a hundred concurrent sandboxes.
const maxIdle = 100

// dial connects to the server. Any local user can listen on a free loopback port and would
// receive the credentials and requests. So the server must belong to this user, to root or to
// one of ServerUsers.
func (c *Client) dial(ctx context.Context, network, address string) (net.Conn, error) {
	own := isAddressOf(c.URL, address)
	if path, ok := strings.CutPrefix(c.URL, "unix:"); ok {
		network, address, own = "unix", path, true
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	if err != nil || !own { // the connection is to a proxy that the user has configured
		return conn, err
	}
	if err := c.checkServer(conn); err != nil {
		conn.Close()
		return nil, err
	}
	return conn, nil
}

// isAddressOf reports whether a URL has this address.
func isAddressOf(base, address string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return true
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return address == net.JoinHostPort(u.Hostname(), port)
}

// checkServer checks the user of the server of a connection within this machine.
func (c *Client) checkServer(conn net.Conn) error {
	if at, ok := conn.RemoteAddr().(*net.TCPAddr); ok && !at.IP.IsLoopback() {
		return nil
	}
	uid, err := peer.Server(conn)
	switch {
	case errors.Is(err, errors.ErrUnsupported):
		return nil
	case errors.Is(err, peer.ErrUnknown):
		return nil // the server is in another network namespace, which only root can arrange
	case err != nil:
		return err
	case uid == 0 || uid == os.Geteuid() || slices.ContainsFunc(c.ServerUsers, func(name string) bool { return isUser(name, uid) }):
		return nil
	}
	return fmt.Errorf("the server at %s belongs to user %d of this machine, not to you or root; if you trust that "+
		"user, add it to %s", c.URL, uid, c.ServerUsersVariable)
}

// isUser reports whether a name or ID identifies a user; * matches all users.
func isUser(name string, uid int) bool {
	if name == "*" || name == strconv.Itoa(uid) {
		return true
	}
	u, err := user.Lookup(name)
	return err == nil && u.Uid == strconv.Itoa(uid)
}

// Do sends a request with the credentials to the server.
func (c *Client) Do(req *http.Request) (*http.Response, error) {
	if c.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.Token)
	}
	if c.Key != "" {
		req.Header.Set("X-API-Key", c.Key)
	}
	return c.do(req)
}

// Noun returns the command of a noun, and adds it if it does not exist.
func Noun(root *cobra.Command, word string) *cobra.Command { return addNoun(root, word, word) }
