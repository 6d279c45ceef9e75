package client

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

// Sandbox is the state of a sandbox as reported by the hub.
type Sandbox struct {
	Name        string            `json:"name"`
	ID          string            `json:"id"`
	User        string            `json:"user"`
	Environment string            `json:"environment"`
	Image       string            `json:"image"`
	App         string            `json:"app"`
	Args        []string          `json:"args"`
	Env         map[string]string `json:"env"`
	Workdir     string            `json:"workdir"`
	Ports       []int             `json:"ports"`
	Labels      map[string]string `json:"labels"`

	Timeout     float64 `json:"timeout"`      // minutes from its creation; -1: never
	IdleTimeout float64 `json:"idle_timeout"` // minutes; -1: never
	IdlePolicy  string  `json:"idle_policy"`
	CPU         string  `json:"cpu"`
	Memory      string  `json:"memory"`
	CPULimit    string  `json:"cpu_limit"`
	MemoryLimit string  `json:"memory_limit"`
	DiskLimit   string  `json:"disk_limit"`
	DiskRate    string  `json:"disk_rate_limit"` // bytes per second, for reads and for writes
	Bandwidth   string  `json:"bandwidth_limit"` // bytes per second, for each direction

	Status       string     `json:"status"` // creating, running, paused, stopped, failed, deleting
	Message      string     `json:"message"`
	CreatedAt    time.Time  `json:"created_at"`
	ExpiresAt    *time.Time `json:"expires_at"` // nil: never
	EndsAt       *time.Time `json:"ends_at"`    // when the first policy applies if it is not used; nil: never
	EndAction    string     `json:"end_action"` // then: delete, stop, pause
	LastActiveAt time.Time  `json:"last_active_at"`

	URL       string            `json:"url"`
	Endpoints map[string]string `json:"endpoints"`
	Isolation string            `json:"isolation"`
	Network   Network           `json:"network"`
	Volumes   []Volume          `json:"volumes"`
	Snapshot  string            `json:"from_snapshot"`
	Stages    []Stage           `json:"stages"`
}

// Network is the egress policy of a sandbox.
type Network struct {
	Mode  string   `json:"mode,omitempty"` // none, allow, ask, open
	Allow []string `json:"allow,omitempty"`
}

// Volume mounts a folder that outlives sandboxes.
type Volume struct {
	Name     string `json:"name"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Stage is one step of a create or start.
type Stage struct {
	Name   string  `json:"name"`
	TookMS float64 `json:"took_ms"`
}

// CreateOptions describe a new sandbox. The environment and the hub provide defaults.
type CreateOptions struct {
	Name        string            `json:"name,omitempty"`
	Environment string            `json:"environment,omitempty"`
	Image       string            `json:"image,omitempty"`
	App         string            `json:"app,omitempty"`
	Args        []string          `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Workdir     string            `json:"workdir,omitempty"`
	Ports       []int             `json:"ports,omitempty"`
	Timeout     float64           `json:"timeout,omitempty"`      // minutes; -1: never
	IdleTimeout float64           `json:"idle_timeout,omitempty"` // minutes; -1: never
	IdlePolicy  string            `json:"idle_policy,omitempty"`  // delete, stop, pause
	Keep        bool              `json:"keep,omitempty"`         // by default, stop it if idle, and delete it after days without use
	CPU         string            `json:"cpu,omitempty"`
	Memory      string            `json:"memory,omitempty"`
	CPULimit    string            `json:"cpu_limit,omitempty"`
	MemoryLimit string            `json:"memory_limit,omitempty"`
	DiskLimit   string            `json:"disk_limit,omitempty"`
	DiskRate    string            `json:"disk_rate_limit,omitempty"` // bytes per second, for reads and for writes
	Bandwidth   string            `json:"bandwidth_limit,omitempty"` // bytes per second, for each direction
	Labels      map[string]string `json:"labels,omitempty"`
	Isolation   string            `json:"isolation,omitempty"`
	Network     *Network          `json:"network,omitempty"`
	Volumes     []Volume          `json:"volumes,omitempty"`
	Snapshot    string            `json:"from_snapshot,omitempty"`
	Secrets     []string          `json:"secrets,omitempty"`
	Networks    []string          `json:"networks,omitempty"` // private networks to join
}

const root = "/api/v1/sandbox"

func at(name, more string) string { return root + "/" + url.PathEscape(name) + more }

// Create creates a sandbox and returns when it is ready.
func (c *Client) Create(ctx context.Context, o CreateOptions) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, root+"?full=true", o)
}

// Get returns a sandbox.
func (c *Client) Get(ctx context.Context, name string) (*Sandbox, error) {
	return c.one(ctx, http.MethodGet, at(name, ""), nil)
}

// Delete deletes a sandbox and everything in it.
func (c *Client) Delete(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, at(name, ""), nil, nil)
}

// Pause pauses a sandbox: it stays in memory and uses no CPU.
func (c *Client) Pause(ctx context.Context, name string) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/pause"), nil)
}

// Resume resumes a paused sandbox.
func (c *Client) Resume(ctx context.Context, name string) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/resume"), nil)
}

// Stop ends all processes of a sandbox and keeps its disk.
func (c *Client) Stop(ctx context.Context, name string) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/stop"), nil)
}

// Start starts a stopped sandbox.
func (c *Client) Start(ctx context.Context, name string) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/start"), nil)
}

// ExtendOptions extend the timeouts of a sandbox, in minutes; -1 means no limit.
type ExtendOptions struct {
	Timeout     float64 `json:"timeout,omitempty"` // from now
	IdleTimeout float64 `json:"idle_timeout,omitempty"`
	IdlePolicy  string  `json:"idle_policy,omitempty"`
}

// Extend extends the timeouts of a sandbox.
func (c *Client) Extend(ctx context.Context, name string, o ExtendOptions) (*Sandbox, error) {
	return c.one(ctx, http.MethodPost, at(name, "/extend"), o)
}

// SetNetwork changes the egress policy of a sandbox immediately.
func (c *Client) SetNetwork(ctx context.Context, name string, n Network) (*Sandbox, error) {
	return c.one(ctx, http.MethodPut, at(name, "/network"), n)
}

func (c *Client) one(ctx context.Context, method, path string, in any) (*Sandbox, error) {
	var s Sandbox
	if err := c.call(ctx, method, path, in, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// ListOptions select sandboxes.
type ListOptions struct {
	User        string // owner; * for all owners. Only an admin can list sandboxes of other owners
	Status      []string
	Environment string
	Labels      []string // key=value, or key
}

// pageSize is the number of sandboxes per request.
const pageSize = 500

// List lists sandboxes, oldest first.
func (c *Client) List(ctx context.Context, o ListOptions) ([]Sandbox, error) {
	q := url.Values{"limit": {strconv.Itoa(pageSize)}, "status": o.Status, "label": o.Labels}
	if o.Environment != "" {
		q.Set("environment", o.Environment)
	}
	if o.User != "" {
		q.Set("user", o.User)
	}
	var all []Sandbox
	for {
		var page struct {
			Items []Sandbox `json:"items"`
			Next  string    `json:"next"`
		}
		if err := c.call(ctx, http.MethodGet, root+"?"+q.Encode(), nil, &page); err != nil {
			return nil, err
		}
		all = append(all, page.Items...)
		if page.Next == "" {
			return all, nil
		}
		q.Set("after", page.Next)
	}
}

// Connection is a connection that a sandbox opened or tried to open.
type Connection struct {
	Time      time.Time `json:"time"`
	Protocol  string    `json:"protocol"` // http, connect, socks5
	Host      string    `json:"host"`
	Port      int       `json:"port"`
	Address   string    `json:"address"`
	Verdict   string    `json:"verdict"` // allowed, denied, failed
	Reason    string    `json:"reason"`
	Ended     bool      `json:"ended"`
	UpBytes   int64     `json:"up_bytes"`
	DownBytes int64     `json:"down_bytes"`
	TookMS    float64   `json:"took_ms"`
}

// Connections lists the latest connections, oldest first.
func (c *Client) Connections(ctx context.Context, name string) ([]Connection, error) {
	var out struct {
		Connections []Connection `json:"connections"`
	}
	err := c.call(ctx, http.MethodGet, at(name, "/network"), nil, &out)
	return out.Connections, err
}

// Logs reads the end of the output of a sandbox's main program, at most max bytes; 0
// means the hub's default.
func (c *Client) Logs(ctx context.Context, name string, max int64) ([]byte, error) {
	path := at(name, "/logs")
	if max > 0 {
		path += "?max=" + strconv.FormatInt(max, 10)
	}
	res, err := c.send(ctx, http.MethodGet, path, nil, nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(io.LimitReader(res.Body, maxReply))
}

// Stats is the resource usage of a sandbox; -1 if unknown.
type Stats struct {
	CPUSeconds   float64   `json:"cpu_seconds"`
	MemoryBytes  int64     `json:"memory_bytes"`
	Pids         int64     `json:"pids"`
	DiskBytes    int64     `json:"disk_bytes"`
	OOMKills     int64     `json:"oom_kills"`
	OpenRequests int       `json:"open_requests"`
	Time         time.Time `json:"time"`
}

// Stats returns the resource usage of a sandbox.
func (c *Client) Stats(ctx context.Context, name string) (*Stats, error) {
	var s Stats
	if err := c.call(ctx, http.MethodGet, at(name, "/stats"), nil, &s); err != nil {
		return nil, err
	}
	return &s, nil
}

// Environment is a kind of sandbox.
type Environment struct {
	Name        string `json:"name"`
	Image       string `json:"image"`
	Description string `json:"description"`
}

// Environments lists the environments of the hub.
func (c *Client) Environments(ctx context.Context) ([]Environment, error) {
	var list []Environment
	err := c.call(ctx, http.MethodGet, "/api/v1/environment", nil, &list)
	return list, err
}

// Info describes the capabilities of a hub; Abilities are human-readable.
type Info struct {
	Version           string          `json:"version"`
	Abilities         json.RawMessage `json:"abilities"`
	EnvironmentsFault string          `json:"environments_fault"`
}

// Info returns the capabilities of the hub.
func (c *Client) Info(ctx context.Context) (*Info, error) {
	var i Info
	if err := c.call(ctx, http.MethodGet, "/api/v1/hub", nil, &i); err != nil {
		return nil, err
	}
	return &i, nil
}

// Ticket returns a one-time ticket that signs a browser in. Pass it as the query parameter ticket of one
// URL. It expires soon.
func (c *Client) Ticket(ctx context.Context) (string, error) {
	var out struct {
		Ticket string `json:"ticket"`
	}
	err := c.call(ctx, http.MethodPost, "/tickets", nil, &out)
	return out.Ticket, err
}
