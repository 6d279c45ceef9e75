package docker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/moby/api/pkg/stdcopy"
	engine "github.com/moby/moby/api/types/container"
	"github.com/moby/moby/client"

	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/containerinit"
	"github.com/cove-sandbox/cove/internal/system/isolate"
	"github.com/cove-sandbox/cove/internal/system/isolate/control"
)

// Logs implements sandbox.Logger.
func (p *Provider) Logs(ctx context.Context, id string, limit int64) ([]byte, error) {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return nil, err
	}
	defer release()
	return p.runner.readLogs(ctx, row.Data, limit)
}

// maxLines bounds how much of the logs is downloaded, which can be many times the requested size.
const maxLines = 10_000

func (r *runner) readLogs(ctx context.Context, b *box, limit int64) ([]byte, error) {
	logs, err := r.engine.ContainerLogs(ctx, b.rec.Container, client.ContainerLogsOptions{ShowStdout: true,
		ShowStderr: true, Tail: strconv.Itoa(maxLines)})
	if err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	defer logs.Close()
	end := &tail{max: max(limit, 0)}
	if _, err := stdcopy.StdCopy(end, end, logs); err != nil {
		return nil, fmt.Errorf("read logs: %w", err)
	}
	return end.bytes(), nil
}

// lastOutput returns the last output of a program for an error message; empty if there is none.
func (r *runner) lastOutput(ctx context.Context, b *box) string {
	call, cancel := steady(ctx)
	defer cancel()
	out, err := r.readLogs(call, b, 2<<10)
	if text := strings.TrimSpace(string(out)); err == nil && text != "" {
		return "; its last output: " + text
	}
	return ""
}

// Stats implements sandbox.Stater.
func (p *Provider) Stats(ctx context.Context, id string) (sandbox.Stats, error) {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return sandbox.Stats{}, err
	}
	defer release()
	name, state := row.Data.rec.Container, row.Sandbox().State
	out := sandbox.Stats{CPU: -1, Memory: -1, Pids: -1, Disk: -1, OOMKills: -1, Time: time.Now()}
	if state != sandbox.Running && state != sandbox.Paused {
		out.Memory, out.Pids = 0, 0
		return out, nil
	}
	got, err := p.engine.ContainerStats(ctx, name, client.ContainerStatsOptions{})
	if err != nil {
		return sandbox.Stats{}, fmt.Errorf("measure container: %w", err)
	}
	defer got.Body.Close()
	var s engine.StatsResponse
	if err := json.NewDecoder(got.Body).Decode(&s); err != nil {
		return sandbox.Stats{}, fmt.Errorf("measure container: %w", err)
	}
	// Like docker stats: the reclaimable page cache does not count.
	cache := cmp.Or(s.MemoryStats.Stats["total_inactive_file"], s.MemoryStats.Stats["inactive_file"])
	out.CPU, out.Pids = time.Duration(s.CPUStats.CPUUsage.TotalUsage), int64(s.PidsStats.Current)
	out.Memory = int64(s.MemoryStats.Usage - min(cache, s.MemoryStats.Usage))
	return out, nil
}

// Diff implements sandbox.Differ.
func (p *Provider) Diff(ctx context.Context, id string, limit int) (sandbox.Diff, error) {
	ctx, row, release, err := p.acquire(ctx, id)
	if err != nil {
		return sandbox.Diff{}, err
	}
	defer release()
	name := row.Data.rec.Container
	got, err := p.engine.ContainerDiff(ctx, name, client.ContainerDiffOptions{})
	if err != nil {
		return sandbox.Diff{}, fmt.Errorf("compare disks: %w", err)
	}
	changes := got.Changes
	slices.SortFunc(changes, func(a, b engine.FilesystemChange) int { return cmp.Compare(a.Path, b.Path) })
	hidden := hiddenPaths(row.Sandbox().Spec)
	d := sandbox.Diff{Changes: []sandbox.Change{}}
	for _, c := range changes {
		if slices.ContainsFunc(hidden, func(h string) bool {
			return c.Path == h || strings.HasPrefix(c.Path, h+"/") || c.Kind == engine.ChangeAdd && strings.HasPrefix(h, c.Path+"/")
		}) {
			continue // mount points, and folders that were created for them
		}
		change, ok, err := p.runner.describe(ctx, name, c)
		if err != nil {
			return sandbox.Diff{}, err
		}
		if !ok {
			continue
		}
		if len(d.Changes) >= max(limit, 0) {
			d.Truncated = true
			break
		}
		d.Changes = append(d.Changes, change)
	}
	return d, nil
}

// hiddenPaths returns the mount points of a container.
func hiddenPaths(spec sandbox.Spec) []string {
	hidden := []string{isolate.Programs, containerinit.HubDir, containerinit.ControlDir,
		path.Dir(control.ServerSocket), isolate.ServerState, isolate.ServerLogs}
	for _, v := range spec.Volumes {
		hidden = append(hidden, v.Target)
	}
	return hidden
}

// describe completes a change; ok is false for a folder of which only entries have changed.
func (r *runner) describe(ctx context.Context, name string, c engine.FilesystemChange) (change sandbox.Change, ok bool, err error) {
	change = sandbox.Change{Path: c.Path, Kind: sandbox.Modified}
	switch c.Kind {
	case engine.ChangeAdd:
		change.Kind = sandbox.Added
	case engine.ChangeDelete:
		change.Kind = sandbox.Removed
		return change, true, nil
	}
	got, err := r.engine.ContainerStatPath(ctx, name, client.ContainerStatPathOptions{Path: c.Path})
	if errdefs.IsNotFound(err) { // it was removed
		return change, false, nil
	}
	if err != nil {
		return change, false, fmt.Errorf("compare disks: %w", err)
	}
	change.Dir = got.Stat.Mode.IsDir()
	if !change.Dir && got.Stat.Mode&fs.ModeType == 0 {
		change.Size = got.Stat.Size
	}
	return change, !change.Dir || change.Kind == sandbox.Added, nil
}
