package toolcatalog

import (
	"context"
	"io"
	"mime"
	"net/http"
	"path"
	"path/filepath"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/toolset"
)

const (
	// listDepth and maxListed bound the list of the workspace's files.
	listDepth = 3
	maxListed = 200
	// watchSeconds is the duration of one wait for a change.
	watchSeconds = 30
)

// fromTable finds all operations of a table.
func fromTable(table func() *op.Table) routes { return newRoutes(table().All()) }

// Files are the files of the workspace, accessed through the file operations.
type Files struct {
	Table     func() *op.Table
	Workspace string
}

// List returns the files near the top of the workspace.
func (f Files) List(ctx context.Context) ([]toolset.File, error) {
	out, err := fromTable(f.Table).call(ctx, "POST /v1/file/list",
		map[string]any{"path": f.Workspace, "recursive": true, "max_depth": listDepth, "show_hidden": false})
	if err != nil {
		return nil, err
	}
	var all []toolset.File
	for _, item := range toObject(out).list("files") {
		e := toObject(item)
		if dir, _ := e["is_directory"].(bool); dir || len(all) == maxListed {
			continue
		}
		p := e.text("path")
		all = append(all, toolset.File{Path: p, Type: mediaType(p), Size: int64(e.number("size"))})
	}
	return all, nil
}

// mediaType returns the media type of a file by its name; empty if unknown.
func mediaType(name string) string {
	switch ext := path.Ext(name); ext {
	case ".md":
		return "text/markdown"
	case ".py", ".go", ".ts", ".sh", ".rs", ".c", ".h", ".toml", ".yaml", ".yml", ".txt", ".log":
		return "text/plain"
	default:
		t, _, _ := strings.Cut(mime.TypeByExtension(ext), ";")
		return t
	}
}

// Read returns a file of at most limit bytes.
func (f Files) Read(ctx context.Context, name string, limit int64) ([]byte, string, error) {
	out, err := fromTable(f.Table).output(ctx, "GET /v1/file/download", map[string]any{"path": filepath.Clean(name)})
	if err != nil {
		return nil, "", err
	}
	blob, ok := out.(*op.Blob)
	if !ok || blob.Body == nil {
		return nil, "", op.Errorf(op.NotFound, "no such file: %q", name)
	}
	defer blob.Body.Close()
	data, err := io.ReadAll(io.LimitReader(blob.Body, limit+1))
	if err != nil {
		return nil, "", op.Errorf(op.Unavailable, "cannot read %q: %w", name, err)
	}
	if int64(len(data)) > limit {
		return nil, "", op.Errorf(op.TooLarge, "%q is larger than %d bytes; use the tool file_read with start_line and end_line", name, limit)
	}
	media := mediaType(name)
	if media == "" {
		media, _, _ = strings.Cut(http.DetectContentType(data), ";")
	}
	return data, media, nil
}

// Watch starts to watch a file before it returns. follow calls changed after every change until ctx ends.
func (f Files) Watch(ctx context.Context, name string, changed func()) (follow func() error, err error) {
	r := fromTable(f.Table)
	// A watcher of the folder detects creation and removal of the file, and buffers events between polls.
	out, err := r.call(ctx, "POST /v1/file/watch", map[string]any{"path": filepath.Dir(name), "recursive": false,
		"debounce": 50, "exclude": []string{}})
	if err != nil {
		return nil, err
	}
	id, cursor := toObject(out).text("watcher_id"), toObject(out).number("cursor")
	return func() error { return r.follow(ctx, id, cursor, name, changed) }, nil
}

// follow reads the events of a watcher until ctx ends, and then removes it.
func (r routes) follow(ctx context.Context, id string, cursor int, name string, changed func()) error {
	defer r.call(context.WithoutCancel(ctx), "DELETE /v1/file/watch/{watcher_id}", map[string]any{"watcher_id": id})
	for {
		out, err := r.call(ctx, "POST /v1/file/watch/{watcher_id}/poll",
			map[string]any{"watcher_id": id, "cursor": cursor, "timeout": watchSeconds})
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		o, changedFile := toObject(out), false
		for _, item := range o.list("events") {
			e := toObject(item)
			changedFile = changedFile || e.text("path") == name || e.text("old_path") == name || e.text("type") == "overflow"
			cursor = max(cursor, e.number("seq"))
		}
		if changedFile {
			changed()
		}
	}
}

// Skills are the registered skills.
type Skills struct{ Table func() *op.Table }

// List returns all skills.
func (s Skills) List(ctx context.Context) ([]toolset.Skill, error) {
	b := fromTable(s.Table)
	if !b.has("GET /v1/skills/metadatas") {
		return nil, nil
	}
	out, err := b.call(ctx, "GET /v1/skills/metadatas", map[string]any{})
	var all []toolset.Skill
	for _, item := range toObject(out).list("skills") {
		o := toObject(item)
		all = append(all, toolset.Skill{Name: o.text("name"), Description: toObject(o["metadata"]).text("description")})
	}
	return all, err
}

// Read returns the instructions of a skill.
func (s Skills) Read(ctx context.Context, name string) (string, error) {
	out, err := fromTable(s.Table).call(ctx, "GET /v1/skills/{name}/content", map[string]any{"name": name})
	return toObject(out).text("content"), err
}

// Guide returns a text about the sandbox for agents.
func Guide(table func() *op.Table) func(context.Context) (string, error) {
	return func(ctx context.Context) (string, error) {
		out, err := fromTable(table).call(ctx, "GET /v1/sandbox", map[string]any{})
		return toObject(out).text("data") + "\n" + Instructions + "\n", err
	}
}
