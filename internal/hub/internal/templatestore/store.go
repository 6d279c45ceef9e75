// Package templatestore stores what a hub knows about templates: their tags, builds, logs, layers and uploaded files.
//
// Each owner has a folder; its records are replaced atomically. The provider stores the disks. Nothing of one owner is
// visible to another. The package owns the folder, and knows nothing of how templates are built.
package templatestore

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
	"github.com/cove-sandbox/cove/internal/recipe"
)

// Template is a name with tags.
type Template struct {
	ID      string            `json:"id"`
	Name    string            `json:"name"`
	Owner   string            `json:"owner,omitempty"`
	Tags    map[string]string `json:"tags"` // IDs of builds
	Created time.Time         `json:"created"`
	Updated time.Time         `json:"updated"`
}

// Status is the state of a build.
type Status string

// The states of a build, in the terms of E2B.
const (
	Waiting  Status = "waiting"
	Building Status = "building"
	Ready    Status = "ready"
	Failed   Status = "error"
)

// Build is one build of a template.
type Build struct {
	ID       string   `json:"id"`
	Owner    string   `json:"owner,omitempty"`
	Template string   `json:"template"` // its name
	Tags     []string `json:"tags"`     // set when it is ready
	Status   Status   `json:"status"`
	Reason   Reason   `json:"reason,omitzero"`

	Recipe recipe.Recipe `json:"recipe"`
	// CPU is in thousandths; Memory and Disk are in bytes. 0: default.
	CPU    int64 `json:"cpu,omitempty"`
	Memory int64 `json:"memory,omitempty"`
	Disk   int64 `json:"disk,omitempty"`

	// Layer is the disk of the finished template; empty if no step has changed that of its base.
	Layer  string        `json:"layer,omitempty"`
	Origin recipe.Base   `json:"origin,omitzero"` // what Layer, or the template without one, is based on
	Config recipe.Config `json:"config,omitzero"`
	Steps  []StepResult  `json:"steps,omitempty"`
	Size   int64         `json:"size"` // of its layers

	Created  time.Time `json:"created"`
	Finished time.Time `json:"finished,omitzero"`
}

// Reason is why a build has failed.
type Reason struct {
	Message string `json:"message"`
	Step    string `json:"step,omitempty"` // base, or the number of a step
}

// StepResult is a finished step.
type StepResult struct {
	Text   string        `json:"text"`
	Layer  string        `json:"layer,omitempty"`
	Cached bool          `json:"cached,omitempty"`
	Took   time.Duration `json:"took"`
	Size   int64         `json:"size"`
}

// Layer is the disk after a step.
type Layer struct {
	ID   string    `json:"id"` // name of the snapshot
	Key  string    `json:"key"`
	Size int64     `json:"size"`
	Used time.Time `json:"used"`
}

// Store stores the records of all owners.
type Store struct {
	dir string
	log *slog.Logger

	partial bool // some records could not be read

	mu        sync.Mutex
	templates map[string]Template // by owner, NUL and name
	builds    map[string]Build
	layers    map[string]Layer // by owner, NUL and key
	files     map[string]File  // by owner, NUL and hash
	logs      map[string]*buildLog
}

// ErrInterrupted is the reason of builds that a hub did not finish.
const ErrInterrupted = "the hub was restarted during the build; build again"

// Open reads the records of a folder. Builds that were running have failed.
func Open(dir string, log *slog.Logger) (*Store, error) {
	s := &Store{dir: dir, log: log, templates: map[string]Template{}, builds: map[string]Build{}, layers: map[string]Layer{},
		files: map[string]File{}, logs: map[string]*buildLog{}}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	paths, err := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	if err != nil {
		return nil, err
	}
	for _, p := range paths {
		if err := s.load(p); err != nil {
			log.Error("cannot read a record of a template; ignoring it", "path", p, "error", err)
			s.partial = true
		}
	}
	for _, b := range s.builds {
		if b.Status == Building {
			b.Status, b.Reason, b.Finished = Failed, Reason{Message: ErrInterrupted}, time.Now()
			if err := s.PutBuild(b); err != nil {
				return nil, err
			}
		}
	}
	return s, s.removeUnfinished()
}

// Complete reports whether all records could be read.
func (s *Store) Complete() bool { return !s.partial }

// entry is a file of records.
type entry struct {
	Template *Template `json:"template,omitempty"`
	Build    *Build    `json:"build,omitempty"`
	Layer    *Layer    `json:"layer,omitempty"`
	File     *File     `json:"file,omitempty"`
	Owner    string    `json:"owner,omitempty"`
}

func (s *Store) load(path string) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var e entry
	if err := json.Unmarshal(b, &e); err != nil {
		return err
	}
	if filepath.Base(filepath.Dir(path)) != folderOf(e.Owner) {
		return errors.New("it is the record of another owner")
	}
	switch {
	case e.Template != nil:
		s.templates[keyOf(e.Owner, e.Template.Name)] = *e.Template
	case e.Build != nil:
		s.builds[e.Build.ID] = *e.Build
	case e.Layer != nil:
		s.layers[keyOf(e.Owner, e.Layer.Key)] = *e.Layer
	case e.File != nil:
		s.files[keyOf(e.Owner, e.File.Hash)] = *e.File
	default:
		return errors.New("it has no known content")
	}
	return nil
}

func keyOf(owner, name string) string { return owner + "\x00" + name }

func folderOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return hex.EncodeToString(sum[:16])
}

func (s *Store) path(owner, name string) string { return filepath.Join(s.dir, folderOf(owner), name) }

// write replaces a record. It survives a power failure.
func (s *Store) write(owner, name string, e entry) error {
	e.Owner = owner
	b, err := json.Marshal(e)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.path(owner, ""), 0o700); err != nil {
		return err
	}
	err = atomicfile.Replace(s.path(owner, name), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return fmt.Errorf("store a record of a template: %w", err)
	}
	return nil
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Template finds a template by its name or ID.
func (s *Store) Template(owner, name string) (Template, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.templates[keyOf(owner, name)]; ok {
		return cloneTemplate(t), true
	}
	for _, t := range s.templates {
		if t.Owner == owner && t.ID == name {
			return cloneTemplate(t), true
		}
	}
	return Template{}, false
}

func cloneTemplate(t Template) Template {
	tags := make(map[string]string, len(t.Tags))
	for k, v := range t.Tags {
		tags[k] = v
	}
	t.Tags = tags
	return t
}

// Templates lists the templates of an owner by name.
func (s *Store) Templates(owner string) []Template {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Template{}
	for _, t := range s.templates {
		if t.Owner == owner {
			list = append(list, cloneTemplate(t))
		}
	}
	slices.SortFunc(list, func(a, b Template) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// ChangeTemplate changes a template atomically; change gets a new one with that name if there is none. It must not call
// the store.
func (s *Store) ChangeTemplate(owner, name string, change func(t *Template, exists bool) error) (Template, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, exists := s.templates[keyOf(owner, name)]
	t = cloneTemplate(t)
	if !exists {
		t = Template{Name: name, Owner: owner, Tags: map[string]string{}, Created: time.Now().UTC()}
	}
	t.Updated = time.Now().UTC()
	if err := change(&t, exists); err != nil {
		return t, err
	}
	if err := s.write(owner, "t-"+name+".json", entry{Template: &t}); err != nil {
		return t, err
	}
	s.templates[keyOf(owner, name)] = cloneTemplate(t)
	return t, nil
}

// DeleteTemplate removes a template and its builds. Its layers stay until they are swept.
func (s *Store) DeleteTemplate(owner, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := remove(s.path(owner, "t-"+name+".json")); err != nil {
		return err
	}
	delete(s.templates, keyOf(owner, name))
	for id, b := range s.builds {
		if b.Owner != owner || b.Template != name || b.Status == Building {
			continue
		}
		if err := errors.Join(remove(s.path(owner, "b-"+id+".json")), remove(s.path(owner, "b-"+id+".log"))); err != nil {
			return err
		}
		delete(s.builds, id)
		delete(s.logs, id)
	}
	return nil
}

// Build finds a build of an owner.
func (s *Store) Build(owner, id string) (Build, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.builds[id]
	return b, ok && b.Owner == owner
}

// Builds lists the builds of a template, oldest first.
func (s *Store) Builds(owner, template string) []Build {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := []Build{}
	for _, b := range s.builds {
		if b.Owner == owner && b.Template == template {
			list = append(list, b)
		}
	}
	slices.SortFunc(list, func(a, b Build) int { return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID)) })
	return list
}

// PutBuild stores a build.
func (s *Store) PutBuild(b Build) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.write(b.Owner, "b-"+b.ID+".json", entry{Build: &b}); err != nil {
		return err
	}
	s.builds[b.ID] = b
	if b.Status == Ready || b.Status == Failed {
		s.closeLog(b.ID)
	}
	return nil
}

// FindLayer returns the layer of a key, and notes that it is used.
func (s *Store) FindLayer(owner, key string) (Layer, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.layers[keyOf(owner, key)]
	if ok {
		l.Used = time.Now()
		s.layers[keyOf(owner, key)] = l
		// The time in the record is not important: after a restart, the layer only looks older.
		_ = os.Chtimes(s.path(owner, "l-"+l.ID+".json"), l.Used, l.Used)
	}
	return l, ok
}

// PutLayer stores a layer durably.
func (s *Store) PutLayer(owner string, l Layer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	l.Used = time.Now()
	if err := s.write(owner, "l-"+l.ID+".json", entry{Layer: &l}); err != nil {
		return err
	}
	s.layers[keyOf(owner, l.Key)] = l
	return nil
}

// DropLayer removes the record of a layer.
func (s *Store) DropLayer(owner, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := remove(s.path(owner, "l-"+id+".json")); err != nil {
		return err
	}
	for key, l := range s.layers {
		if l.ID == id && strings.HasPrefix(key, owner+"\x00") {
			delete(s.layers, key)
		}
	}
	return nil
}

// Knows reports whether a layer of an owner has a record or belongs to a build.
func (s *Store) Knows(owner, id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for key, l := range s.layers {
		if l.ID == id && strings.HasPrefix(key, owner+"\x00") {
			return true
		}
	}
	for _, b := range s.builds {
		if b.Owner == owner && b.Layer == id {
			return true
		}
	}
	return false
}

// historyLength is the number of latest builds of a template whose layers are kept.
const historyLength = 10

// Unused lists the layers of all owners that no template needs and that were last used before a time, by owner.
func (s *Store) Unused(before time.Time) map[string][]string {
	used := map[string]bool{}
	for _, t := range s.all() {
		tagged := map[string]bool{}
		for _, build := range t.Tags {
			tagged[build] = true
		}
		builds := s.Builds(t.Owner, t.Name)
		for i, b := range builds {
			if !tagged[b.ID] && len(builds)-i > historyLength && b.Status != Building {
				continue
			}
			used[keyOf(t.Owner, b.Layer)] = true
			for _, step := range b.Steps {
				used[keyOf(t.Owner, step.Layer)] = true
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	unused := map[string][]string{}
	for key, l := range s.layers {
		owner, _, _ := strings.Cut(key, "\x00")
		if !used[keyOf(owner, l.ID)] && l.Used.Before(before) {
			unused[owner] = append(unused[owner], l.ID)
		}
	}
	return unused
}

func (s *Store) all() (list []Template) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.templates {
		list = append(list, cloneTemplate(t))
	}
	return list
}
