package client

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"time"
)

// Template is a disk with a name that sandboxes start from.
type Template struct {
	ID      string    `json:"id"`
	Name    string    `json:"name"`
	Tags    []string  `json:"tags"`
	Size    int64     `json:"size"`
	Created time.Time `json:"created"`
	Updated time.Time `json:"updated"`
	Builds  []Build   `json:"builds"` // newest first; only of Get
}

// Build is a build of a template.
type Build struct {
	ID       string      `json:"id"`
	Template string      `json:"template"`
	Tags     []string    `json:"tags"`
	Status   string      `json:"status"` // waiting, building, ready, error
	Error    string      `json:"error"`
	Step     string      `json:"step"` // that failed
	Steps    []BuiltStep `json:"steps"`
	Size     int64       `json:"size"`
	Created  time.Time   `json:"created"`
	Finished time.Time   `json:"finished"`
}

// Ended reports whether the build is ready or has failed.
func (b *Build) Ended() bool { return b.Status == "ready" || b.Status == "error" }

// BuiltStep is a finished step.
type BuiltStep struct {
	Text   string  `json:"text"`
	Cached bool    `json:"cached"`
	Took   float64 `json:"took_seconds"`
	Size   int64   `json:"size"`
}

// BuildOptions describe a build. The zero Base is the default environment.
type BuildOptions struct {
	Stages  []BuildStage      `json:"stages,omitempty"`
	Base    BuildBase         `json:"base"`
	Steps   []BuildStep       `json:"steps"`
	Start   string            `json:"start,omitempty"` // shell command that runs in each sandbox
	Ready   string            `json:"ready,omitempty"` // shell command that succeeds when it is ready
	Force   bool              `json:"force,omitempty"` // run all steps again
	Pull    bool              `json:"pull,omitempty"`  // pull the images again
	Tags    []string          `json:"tags,omitempty"`
	Keep    bool              `json:"keep,omitempty"`    // keep a copy of the sandbox of a failed step
	Secrets map[string]string `json:"secrets,omitempty"` // by ID; not stored
	CPU     string            `json:"cpu,omitempty"`
	Memory  string            `json:"memory,omitempty"`
	Disk    string            `json:"disk,omitempty"`
}

// BuildStage is a disk that later stages start from or copy files from.
type BuildStage struct {
	Name  string      `json:"name"`
	Base  BuildBase   `json:"base"`
	Steps []BuildStep `json:"steps,omitempty"`
}

// BuildBase is what a build starts from: one of these.
type BuildBase struct {
	Image       string `json:"image,omitempty"`
	Environment string `json:"environment,omitempty"`
	Template    string `json:"template,omitempty"`
	Stage       string `json:"stage,omitempty"`
}

// BuildStep is one step. Kind is run, copy, env, workdir or user; the documentation of the API describes the other fields.
type BuildStep struct {
	Kind    string            `json:"kind"`
	Text    string            `json:"text,omitempty"`
	Line    int               `json:"line,omitempty"`
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Pairs   []string          `json:"pairs,omitempty"`
	Path    string            `json:"path,omitempty"`
	User    string            `json:"user,omitempty"`
	Sources []string          `json:"sources,omitempty"`
	To      string            `json:"to,omitempty"`
	Owner   string            `json:"owner,omitempty"`
	Mode    string            `json:"mode,omitempty"`
	Files   string            `json:"files,omitempty"`
	From    string            `json:"from,omitempty"`
	Unpack  bool              `json:"unpack,omitempty"`
	Mounts  []BuildMount      `json:"mounts,omitempty"`
	Vars    map[string]string `json:"vars,omitempty"`
	Force   bool              `json:"force,omitempty"`
}

// BuildMount is a cache or secret that a run step sees.
type BuildMount struct {
	Kind     string `json:"kind"`
	ID       string `json:"id,omitempty"`
	Target   string `json:"target,omitempty"`
	Env      string `json:"env,omitempty"`
	Owner    string `json:"owner,omitempty"`
	Mode     string `json:"mode,omitempty"`
	Required bool   `json:"required,omitempty"`
}

// BuildEntry is a line of the log of a build. Its text is untrusted.
type BuildEntry struct {
	Time  time.Time `json:"time"`
	Level string    `json:"level"` // debug, info, warn, error
	Step  string    `json:"step"`
	Text  string    `json:"text"`
}

const templates = "/api/v1/template"

func templateAt(name, rest string) string { return templates + "/" + url.PathEscape(name) + rest }

func buildAt(id, rest string) string { return "/api/v1/build/" + url.PathEscape(id) + rest }

// Templates calls the operations on templates.
type Templates struct{ conn }

// Templates returns a client for templates.
func (c *Client) Templates() *Templates { return &Templates{c.conn} }

// List lists templates.
func (c *Templates) List(ctx context.Context) (list []Template, err error) {
	return list, c.call(ctx, http.MethodGet, templates, nil, &list)
}

// Get returns a template with its latest builds.
func (c *Templates) Get(ctx context.Context, name string) (*Template, error) {
	out := new(Template)
	return out, c.call(ctx, http.MethodGet, templateAt(name, ""), nil, out)
}

// Delete deletes a template. Sandboxes created from it are not affected.
func (c *Templates) Delete(ctx context.Context, name string) error {
	return c.call(ctx, http.MethodDelete, templateAt(name, ""), nil, nil)
}

// History lists the builds of a template, newest first.
func (c *Templates) History(ctx context.Context, name string) (list []Build, err error) {
	return list, c.call(ctx, http.MethodGet, templateAt(name, "/history"), nil, &list)
}

// Tag gives the build of NAME or NAME:TAG another tag.
func (c *Templates) Tag(ctx context.Context, name, tag string) (*Template, error) {
	out := new(Template)
	return out, c.call(ctx, http.MethodPost, templateAt(name, "/tag"), map[string]string{"tag": tag}, out)
}

// Untag removes a tag.
func (c *Templates) Untag(ctx context.Context, name, tag string) (*Template, error) {
	out := new(Template)
	return out, c.call(ctx, http.MethodDelete, templateAt(name, "/tag/"+url.PathEscape(tag)), nil, out)
}

// StartBuild starts a build of a template, NAME or NAME:TAG. Files of copy steps must be uploaded before.
func (c *Templates) StartBuild(ctx context.Context, name string, o BuildOptions) (*Build, error) {
	if o.Steps == nil {
		o.Steps = []BuildStep{}
	}
	out := new(Build)
	return out, c.call(ctx, http.MethodPost, templateAt(name, "/build"), o, out)
}

// Build returns a build.
func (c *Templates) Build(ctx context.Context, id string) (*Build, error) {
	out := new(Build)
	return out, c.call(ctx, http.MethodGet, buildAt(id, ""), nil, out)
}

// CancelBuild cancels a build. Its finished steps stay stored.
func (c *Templates) CancelBuild(ctx context.Context, id string) error {
	return c.call(ctx, http.MethodDelete, buildAt(id, ""), nil, nil)
}

// BuildLog follows the log of a build until the build ends. It reconnects when the connection breaks.
func (c *Templates) BuildLog(ctx context.Context, id string) iter.Seq2[BuildEntry, error] {
	return func(yield func(BuildEntry, error) bool) {
		after := ""
		for pause := time.Duration(0); ; {
			before := after
			err := c.readLog(ctx, id, &after, yield)
			switch {
			case err == nil || errors.Is(err, errStopped):
				return
			case ctx.Err() != nil:
				yield(BuildEntry{}, context.Cause(ctx))
				return
			case refused(err):
				yield(BuildEntry{}, err)
				return
			case after != before:
				pause = 0
			}
			pause = min(max(2*pause, 100*time.Millisecond), 5*time.Second)
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
		}
	}
}

// readLog reads one connection to its end. It returns nil at the end of the log.
func (c *Templates) readLog(ctx context.Context, id string, after *string, yield func(BuildEntry, error) bool) error {
	header := http.Header{"Accept": {"text/event-stream"}}
	if *after != "" {
		header.Set("Last-Event-ID", *after)
	}
	res, err := c.send(ctx, http.MethodGet, buildAt(id, "/log"), nil, header)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	for raw, err := range events(res.Body) {
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var e BuildEntry
		if json.Unmarshal([]byte(raw.data), &e) != nil {
			continue
		}
		if *after = raw.id; !yield(e, nil) {
			return errStopped
		}
	}
	return nil
}

// UploadFiles uploads the files of copy steps, a tar archive that can be compressed with gzip or zstd, unless the hub has
// files with that hash: 64 hexadecimal digits that the caller derives from the content. It reports whether it has sent them.
func (c *Templates) UploadFiles(ctx context.Context, hash string, write func(io.Writer) error) (sent bool, err error) {
	var where struct {
		Present bool   `json:"present"`
		URL     string `json:"url"`
	}
	if err := c.call(ctx, http.MethodPost, templates+"/files", map[string]string{"hash": hash}, &where); err != nil || where.Present {
		return false, err
	}
	u, err := url.Parse(where.URL)
	if err != nil {
		return false, fmt.Errorf("the hub sent an invalid URL for files: %w", err)
	}
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err)
		written <- err
	}()
	// Only the ticket is used: the address of the hub for this client can differ.
	res, err := c.once(ctx, http.MethodPut, templates+"/upload?"+u.RawQuery, r, http.Header{"Content-Type": {"application/x-tar"}})
	r.CloseWithError(io.ErrClosedPipe)
	if failed := <-written; failed != nil && !errors.Is(failed, io.ErrClosedPipe) {
		err = failed
	}
	if err != nil {
		return false, fmt.Errorf("upload files: %w", err)
	}
	return true, res.Body.Close()
}
