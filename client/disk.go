package client

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Snapshot is a saved disk.
type Snapshot struct {
	Name    string    `json:"name"`
	User    string    `json:"user"`
	Sandbox string    `json:"sandbox"` // ID of the source sandbox
	Parent  string    `json:"parent"`
	Image   string    `json:"image"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
}

// Change is one path that a sandbox has changed.
type Change struct {
	Path string `json:"path"`
	Kind string `json:"kind"` // added, modified, deleted
	Dir  bool   `json:"dir"`
	Size int64  `json:"size"`
}

// Share is a link that gives others temporary access to a sandbox.
type Share struct {
	ID       string    `json:"id"`
	Sandbox  string    `json:"sandbox"` // ID
	Port     int       `json:"port"`    // 0: the whole sandbox
	ReadOnly bool      `json:"read_only"`
	Expires  time.Time `json:"expires"`
	URL      string    `json:"url"`   // set only at creation
	Token    string    `json:"token"` // set only at creation
}

// Snapshot saves the current disk of a sandbox.
func (c *Client) Snapshot(ctx context.Context, name, snapshot string) (*Snapshot, error) {
	out := new(Snapshot)
	return out, c.call(ctx, http.MethodPost, at(name, "/snapshot"), map[string]string{"snapshot": snapshot}, out)
}

// Snapshots lists snapshots, oldest first.
func (c *Client) Snapshots(ctx context.Context) (list []Snapshot, err error) {
	return list, c.call(ctx, http.MethodGet, "/api/v1/snapshot", nil, &list)
}

// DeleteSnapshot deletes a snapshot; sandboxes created from it are not affected.
func (c *Client) DeleteSnapshot(ctx context.Context, snapshot string) error {
	return c.call(ctx, http.MethodDelete, "/api/v1/snapshot/"+url.PathEscape(snapshot), nil, nil)
}

// Rollback restores the disk of a sandbox from a snapshot.
func (c *Client) Rollback(ctx context.Context, name, snapshot string) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/rollback"), map[string]string{"snapshot": snapshot})
}

// Fork creates copies of a sandbox: one for each name, or count of them.
func (c *Client) Fork(ctx context.Context, name string, count int, names ...string) (list []Sandbox, err error) {
	in := map[string]any{"count": count, "names": names}
	return list, c.call(ctx, http.MethodPost, at(name, "/fork"), in, &list)
}

// Diff lists what a sandbox has changed on its disk, at most limit changes; more
// reports whether there are others.
func (c *Client) Diff(ctx context.Context, name string, limit int) (changes []Change, more bool, err error) {
	var out struct {
		Changes   []Change `json:"changes"`
		Truncated bool     `json:"truncated"`
	}
	err = c.call(ctx, http.MethodGet, at(name, "/diff?limit="+strconv.Itoa(limit)), nil, &out)
	return out.Changes, out.Truncated, err
}

// Share creates a link to a sandbox, or to one of its ports if port is not 0.
func (c *Client) Share(ctx context.Context, name string, port int, readOnly bool, life time.Duration) (*Share, error) {
	out := new(Share)
	in := map[string]any{"port": port, "read_only": readOnly, "minutes": life.Minutes()}
	return out, c.call(ctx, http.MethodPost, at(name, "/share"), in, out)
}

// RevokeShare revokes a link.
func (c *Client) RevokeShare(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, "/api/v1/share/"+url.PathEscape(id), nil, nil)
}
