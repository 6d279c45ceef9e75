// Package skill owns the skills of a sandbox: folders with a SKILL.md, which has instructions for
// agents.
//
// It keeps the list of registered skills and installs their dependencies. Deleting a skill
// only unregisters it and keeps its files. The package refuses invalid names, front matter
// that is not YAML, and archives that are too large or leave their destination.
package skill

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/guest/internal/pathname"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// maxSkills limits the registered skills.
const maxSkills = 1000

// Config of the service. A limit of 0 means the default.
type Config struct {
	Home      string
	Workspace string
	State     string   // folder for the list of skills and for uploads without a path
	Venv      string   // Python environment that requirements are installed into
	Paths     []string // registered at the start
	Runner    *proc.Runner
	Log       *slog.Logger

	InstallTime time.Duration  // limit of one command that installs dependencies
	Archive     archive.Limits // of an uploaded archive
}

// Service implements the skill operations.
type Service struct {
	cfg  Config
	base pathname.Base
	life context.Context
	end  context.CancelFunc

	load    sync.Once
	place   sync.Mutex // one archive is unpacked to its folder at a time
	install sync.Mutex // one installation at a time, since pip and npm do not support concurrent runs

	mu     sync.Mutex
	skills map[string]Metadata
}

// New returns the service. It has no side effects: the list is read on first use.
func New(c Config) *Service {
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	c.Archive = cmp.Or(c.Archive, archive.Limits{Entries: 20_000, Bytes: 1 << 30, Packed: 256 << 20})
	c.InstallTime = cmp.Or(c.InstallTime, 10*time.Minute)
	s := &Service{cfg: c, base: pathname.Base{Home: c.Home, Workspace: c.Workspace}, skills: map[string]Metadata{}}
	s.life, s.end = context.WithCancel(context.Background())
	return s
}

// Ops lists the operations of the service.
func (s *Service) Ops() []op.Op {
	return []op.Op{
		op.New(op.Spec{Name: "skills_register", Route: "POST /v1/skills/register", Tag: "skills",
			SDK: "skills.register_skills", MaxBody: -1, NoTool: true,
			Doc: "Register skills and install their dependencies. Send path for a folder with a SKILL.md, or for a " +
				"folder of such folders. Or send a zip as file; it is unpacked to path, or to the folder name below it."}, s.Register),
		op.New(op.Spec{Name: "skills_list", Access: op.AccessRead, Route: "GET /v1/skills/metadatas", Tag: "skills",
			SDK: "skills.list_metadata", ReadOnly: true,
			Doc: "List the registered skills with their front matter."}, s.List),
		op.New(op.Spec{Name: "skills_content", Route: "GET /v1/skills/{name}/content", Tag: "skills", SDK: "skills.get_content", ReadOnly: true,
			Doc: "Return the instructions of a skill: its SKILL.md without the front matter."}, s.Content),
		op.New(op.Spec{Name: "skills_delete", Route: "DELETE /v1/skills/{name}", Tag: "skills", SDK: "skills.delete_skill",
			Doc: "Unregister a skill. Its files are kept."}, s.Delete),
		op.New(op.Spec{Name: "skills_clear", Route: "DELETE /v1/skills", Tag: "skills", SDK: "skills.clear_skills",
			Doc: "Unregister all skills. Their files are kept."}, s.Clear),
	}
}

// Begin registers the configured paths and installs their dependencies. A path that cannot
// be registered is logged.
func (s *Service) Begin(ctx context.Context) {
	defer context.AfterFunc(ctx, s.end)()
	for _, path := range s.cfg.Paths {
		found, faults, err := s.scan(path)
		if err == nil {
			err = s.add(found)
		}
		if err != nil {
			s.cfg.Log.Warn("cannot register skills", "path", path, "error", err)
			continue
		}
		for _, fault := range faults {
			s.cfg.Log.Warn("skill skipped", "path", path, "error", fault)
		}
		s.installAll(found)
	}
}

// Close ends running installations and waits for them.
func (s *Service) Close() error {
	s.end()
	s.install.Lock() // waits for the last installation
	defer s.install.Unlock()
	return nil
}

// Metadata describes a registered skill.
type Metadata struct {
	Name     string         `json:"name"`
	Path     string         `json:"path" doc:"Folder of the skill"`
	Metadata map[string]any `json:"metadata" doc:"Front matter of SKILL.md"`
	Commands []Command      `json:"dependency_commands" doc:"Commands that installed the dependencies"`
}

// Command is a finished installation command.
type Command struct {
	Command []string `json:"command"`
	Success bool     `json:"success"`
	Stdout  *string  `json:"stdout"`
	Stderr  *string  `json:"stderr"`
}

// ListIn selects skills.
type ListIn struct {
	Names *string `query:"names" doc:"Names to return, separated by commas; default is all"`
}

// Collection is a list of skills.
type Collection struct {
	Skills []Metadata `json:"skills"`
}

// List returns the skills in the order of their names.
func (s *Service) List(_ context.Context, in ListIn) (Collection, error) {
	all := s.All()
	if names := op.Value(in.Names); strings.TrimSpace(names) != "" {
		wanted := map[string]bool{}
		for name := range strings.SplitSeq(names, ",") {
			wanted[strings.TrimSpace(name)] = true
		}
		all = slices.DeleteFunc(all, func(m Metadata) bool { return !wanted[m.Name] })
	}
	return Collection{all}, nil
}

// All returns the registered skills in the order of their names.
func (s *Service) All() []Metadata {
	s.restore()
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]Metadata, 0, len(s.skills))
	for _, m := range s.skills {
		list = append(list, m)
	}
	slices.SortFunc(list, func(a, b Metadata) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// NameIn names a skill.
type NameIn struct {
	Name string `path:"name" doc:"Name of the skill"`
}

// Content is the text of a skill.
type Content struct {
	Name    string `json:"name"`
	Path    string `json:"path" doc:"Folder of the skill"`
	Content string `json:"content" doc:"SKILL.md without the front matter"`
}

// Content reads the SKILL.md of a skill.
func (s *Service) Content(_ context.Context, in NameIn) (Content, error) {
	m, err := s.find(in.Name)
	if err != nil {
		return Content{}, err
	}
	doc, err := readDocument(m.Path)
	if err != nil {
		return Content{}, op.Errorf(op.NotFound, "read skill %q: %w; register its folder again", in.Name, err)
	}
	return Content{m.Name, m.Path, doc.body}, nil
}

func (s *Service) find(name string) (Metadata, error) {
	s.restore()
	s.mu.Lock()
	defer s.mu.Unlock()
	m, ok := s.skills[name]
	if !ok {
		return Metadata{}, op.Errorf(op.NotFound, "no such skill: %q; list skills with GET /v1/skills/metadatas", name)
	}
	return m, nil
}

// Delete unregisters a skill.
func (s *Service) Delete(ctx context.Context, in NameIn) (Metadata, error) {
	m, err := s.find(in.Name)
	if err != nil {
		return Metadata{}, err
	}
	if err := s.remove(in.Name); err != nil {
		return Metadata{}, err
	}
	op.Say(ctx, "Skill %s deleted", in.Name)
	return m, nil
}

// Cleared lists what was unregistered.
type Cleared struct {
	Count   int      `json:"count"`
	Removed []string `json:"removed" doc:"Names of the skills"`
}

// Clear unregisters all skills.
func (s *Service) Clear(ctx context.Context, _ op.None) (Cleared, error) {
	var names []string
	for _, m := range s.All() {
		names = append(names, m.Name)
	}
	if err := s.remove(names...); err != nil {
		return Cleared{}, err
	}
	op.Say(ctx, "%d skills deleted", len(names))
	return Cleared{len(names), names}, nil
}
