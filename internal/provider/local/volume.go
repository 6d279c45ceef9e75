package local

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/isolate"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// A volume is a folder, in a folder per owner, with its record beside it. Names
// of volumes do not begin with a dot; what does is ours.
const (
	volumeMark = "."
	doomedMark = ".doomed-"
)

// folderOf names the folder of an owner, whose name can hold what a file name cannot.
func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:8])
}

func (p *Provider) volumeDir(owner string) string {
	return filepath.Join(p.cfg.Dir, "volumes", folderOf(owner))
}

// useVolume returns the folder of an owner's volume and makes it if needed.
func (p *Provider) useVolume(owner, name string) (string, error) {
	p.volumes.Lock()
	defer p.volumes.Unlock()
	path := filepath.Join(p.volumeDir(owner), name)
	if exists(path) {
		return path, nil
	}
	_, err := p.makeVolume(owner, name)
	return path, err
}

// makeVolume makes the record before the folder: a folder is always a volume.
func (p *Provider) makeVolume(owner, name string) (sandbox.VolumeInfo, error) {
	info := sandbox.VolumeInfo{Name: name, Owner: owner, Created: time.Now(), Sandboxes: []string{}}
	dir := p.volumeDir(owner)
	err := os.MkdirAll(dir, 0o700)
	if err == nil {
		err = saveJSON(dir, volumeMark+name+jsonExt, info, true)
	}
	if err == nil {
		err = p.makeFolder(filepath.Join(dir, name), isolate.UID)
	}
	if err != nil {
		return info, fmt.Errorf("make volume: %w", err)
	}
	return info, nil
}

// CreateVolume implements sandbox.Volumer.
func (p *Provider) CreateVolume(ctx context.Context, owner, name string) (sandbox.VolumeInfo, error) {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return sandbox.VolumeInfo{}, err
	}
	defer done()
	if err := sandbox.CheckName(name); err != nil {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume: %w", sandbox.ErrInvalid, err)
	}
	p.volumes.Lock()
	defer p.volumes.Unlock()
	if exists(filepath.Join(p.volumeDir(owner), name)) {
		return sandbox.VolumeInfo{}, fmt.Errorf("%w: volume %q", sandbox.ErrConflict, name)
	}
	return p.makeVolume(owner, name)
}

// Volumes implements sandbox.Volumer.
func (p *Provider) Volumes(ctx context.Context, owner string) ([]sandbox.VolumeInfo, error) {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	pattern := "*"
	if owner != "" {
		pattern = folderOf(owner)
	}
	records, err := filepath.Glob(filepath.Join(p.cfg.Dir, "volumes", pattern, volumeMark+"*"+jsonExt))
	if err != nil {
		return nil, err
	}
	users, err := p.volumeUsers()
	if err != nil {
		return nil, err
	}
	all := []sandbox.VolumeInfo{}
	for _, r := range records {
		info := sandbox.VolumeInfo{}
		data, err := os.ReadFile(r)
		if err == nil {
			err = json.Unmarshal(data, &info)
		}
		if notThere(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", r, err)
		}
		used, err := measure(filepath.Join(filepath.Dir(r), info.Name), 0)
		if notThere(err) {
			continue // deleted meanwhile, or never finished
		}
		if err != nil {
			return nil, err
		}
		info.Size, info.Sandboxes = used.bytes, append([]string{}, users[named{info.Owner, info.Name}]...)
		all = append(all, info)
	}
	slices.SortFunc(all, func(a, b sandbox.VolumeInfo) int {
		return cmp.Or(cmp.Compare(a.Owner, b.Owner), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// volumeUsers lists the sandboxes that have a volume in their spec.
func (p *Provider) volumeUsers() (map[named][]string, error) {
	all, err := p.table.List(sandbox.Filter{})
	users := map[named][]string{}
	for _, sb := range all {
		for _, v := range sb.Spec.Volumes {
			key := named{sb.Spec.Owner, v.Name}
			users[key] = append(users[key], sb.ID)
		}
	}
	return users, err
}

// DeleteVolume implements sandbox.Volumer.
func (p *Provider) DeleteVolume(ctx context.Context, owner, name string) error {
	_, done, err := p.table.Begin(ctx)
	if err != nil {
		return err
	}
	defer done()
	doomed, err := p.doomVolume(owner, name)
	if err != nil {
		return err
	}
	return removeTree(doomed)
}

// doomVolume takes a volume out of sight. A sandbox is listed before its volumes
// are looked for, so either it is seen here or it gets a new volume.
func (p *Provider) doomVolume(owner, name string) (string, error) {
	p.volumes.Lock()
	defer p.volumes.Unlock()
	path := filepath.Join(p.volumeDir(owner), name)
	if sandbox.CheckName(name) != nil || !exists(path) {
		return "", fmt.Errorf("%w: %q", sandbox.ErrNoVolume, name)
	}
	users, err := p.volumeUsers()
	if err != nil {
		return "", err
	}
	if ids := users[named{owner, name}]; len(ids) > 0 {
		return "", fmt.Errorf("%w: volume %q is used by %s; delete that first", sandbox.ErrState, name, strings.Join(ids, ", "))
	}
	var salt [8]byte
	rand.Read(salt[:])
	doomed := filepath.Join(p.cfg.Dir, "volumes", doomedMark+hex.EncodeToString(salt[:]))
	err = os.Rename(path, doomed)
	if err == nil {
		err = os.Remove(filepath.Join(p.volumeDir(owner), volumeMark+name+jsonExt))
	}
	if notThere(err) {
		err = nil
	}
	return doomed, err
}

// tidyVolumes ends the deletions that an earlier hub began.
func (p *Provider) tidyVolumes() error {
	doomed, err := filepath.Glob(filepath.Join(p.cfg.Dir, "volumes", doomedMark+"*"))
	for _, d := range doomed {
		err = errors.Join(err, removeTree(d))
	}
	return err
}
