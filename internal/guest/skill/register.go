package skill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/filesystem/archive"
	"github.com/cove-sandbox/cove/internal/filesystem/atomicfile"
)

// RegisterIn is a folder, or an archive and its destination.
type RegisterIn struct {
	File *op.File `form:"file,omitempty" nullable:"true" doc:"Zip with one or more skills"`
	Path *string  `form:"path" doc:"Without file: folder of one or several skills. With file: folder to unpack it into"`
	Name *string  `form:"name" doc:"With file: folder below path to unpack it into"`
}

// Registered lists the registered skills.
type Registered struct {
	Count      int        `json:"count"`
	Registered []Metadata `json:"registered"`
}

// Register registers skills, and installs their dependencies. A failed installation does
// not undo the registration.
func (s *Service) Register(ctx context.Context, in RegisterIn) (Registered, error) {
	path, name := strings.TrimSpace(op.Value(in.Path)), strings.TrimSpace(op.Value(in.Name))
	var found []Metadata
	var faults []error
	var err error
	switch {
	case in.File != nil:
		found, faults, err = s.registerArchive(ctx, in.File, path, name)
	case path == "":
		err = op.Errorf(op.Invalid, "nothing to register: send path, the folder of a skill, or file, a zip")
	default:
		if found, faults, err = s.scan(path); err == nil {
			err = s.add(found)
		}
	}
	if err != nil {
		return Registered{}, err
	}
	found = s.installAll(found)
	op.Say(ctx, "%d skills registered", len(found))
	hint(ctx, found, faults)
	return Registered{len(found), found}, nil
}

// hint reports skipped skills and failed installations.
func hint(ctx context.Context, found []Metadata, faults []error) {
	var lines []string
	for _, fault := range faults {
		lines = append(lines, "skipped: "+fault.Error())
	}
	for _, m := range found {
		for _, c := range m.Commands {
			if !c.Success {
				lines = append(lines, fmt.Sprintf("dependencies of %s are not installed: %s failed; its output is "+
					"in dependency_commands", m.Name, strings.Join(c.Command, " ")))
			}
		}
	}
	if len(lines) > 0 {
		op.Hint(ctx, "%s", strings.Join(lines[:min(len(lines), 20)], "; "))
	}
}

// scan finds the skills in a folder. It fails if there is no valid one; faults are the errors of
// invalid ones.
func (s *Service) scan(path string) (found []Metadata, faults []error, err error) {
	dir, err := s.base.Resolve(path)
	if err != nil {
		return nil, nil, op.Errorf(op.Invalid, "register skills: %w", err)
	}
	folders, err := skillFolders(dir)
	if err != nil {
		return nil, nil, err
	}
	return describeAll(dir, folders)
}

// describeAll reads the skills in folders of dir. It fails if none is valid; faults are the errors
// of invalid ones.
func describeAll(dir string, folders []string) (found []Metadata, faults []error, err error) {
	seen := map[string]string{}
	for _, folder := range folders {
		m, err := describe(folder, folder)
		if err == nil && seen[m.Name] != "" {
			err = fmt.Errorf("%s: the name %q is already used by %s", folder, m.Name, seen[m.Name])
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		seen[m.Name] = folder
		found = append(found, m)
	}
	switch {
	case len(found) > 0:
		return found, faults, nil
	case len(faults) > 0:
		return nil, nil, op.Errorf(op.Invalid, "register skills: %w", errors.Join(faults...))
	}
	return nil, nil, op.Errorf(op.NotFound, "no skill in %q: neither the folder nor a folder below it has a %s", dir, documentName)
}

// describe reads the skill in a folder that will be, or is, at path.
func describe(folder, path string) (Metadata, error) {
	doc, err := readDocument(folder)
	if err != nil {
		return Metadata{}, err
	}
	name, err := doc.name(path)
	if err != nil {
		return Metadata{}, fmt.Errorf("%s: %w", filepath.Join(folder, documentName), err)
	}
	return Metadata{Name: name, Path: path, Metadata: doc.front}, nil
}

// skillFolders lists the folders with a SKILL.md: dir itself, or those below it.
func skillFolders(dir string) ([]string, error) {
	found, err := walkFolders(dir)
	if err != nil {
		return nil, op.Errorf(op.NotFound, "register skills: %w", err)
	}
	return found, nil
}

func walkFolders(dir string) ([]string, error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%q is not a folder; send an archive as file", dir)
	}
	if real, err := filepath.EvalSymlinks(dir); err == nil {
		dir = real // WalkDir does not follow a link
	}
	var found []string
	seen := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil //nolint:nilerr // skip folders that cannot be read
		}
		if seen++; seen > maxFolders {
			return fmt.Errorf("%q has more than %d folders; register the folders of skills", dir, maxFolders)
		}
		if path != dir && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules" || depth(dir, path) > maxDepth) {
			return fs.SkipDir
		}
		if _, err := documentPath(path); err != nil {
			return nil //nolint:nilerr // the folder has no SKILL.md
		}
		if found = append(found, path); len(found) > maxSkills {
			return fmt.Errorf("%q has more than %d skills", dir, maxSkills)
		}
		return fs.SkipDir
	})
	return found, err
}

func depth(root, path string) int {
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return maxDepth + 1
	}
	return strings.Count(rel, string(filepath.Separator)) + 1
}

// registerArchive unpacks an archive and registers its skills. It first unpacks to a temporary
// folder, so that an archive without a skill leaves no files.
func (s *Service) registerArchive(ctx context.Context, file *op.File, path, name string) ([]Metadata, []error, error) {
	if name != "" && (!plainName().MatchString(name) || strings.Contains(name, "..")) {
		return nil, nil, op.Errorf(op.Invalid, "invalid folder name %.80q; use letters, digits, hyphens, underscores and single dots", name)
	}
	dest, err := s.destination(file.Name, path, name)
	if err != nil {
		return nil, nil, err
	}
	spool, err := s.createSpool()
	if err != nil {
		return nil, nil, err
	}
	defer os.RemoveAll(spool)
	zip, err := s.store(file, spool)
	if err != nil {
		return nil, nil, err
	}
	defer zip.Close()
	trial := filepath.Join(spool, "trial")
	if err := s.extract(ctx, zip, trial, spool); err != nil {
		return nil, nil, err
	}
	folders, err := skillFolders(trial)
	if err == nil {
		_, _, err = describeAll(trial, folders)
	}
	if err != nil {
		e, _ := op.AsError(err)
		return nil, nil, op.Errorf(e.Code, "%s", strings.ReplaceAll(e.Msg, trial, filepath.Base(file.Name)))
	}
	s.place.Lock()
	defer s.place.Unlock()
	if path == "" {
		if dest, err = s.clearFolder(dest, trial, folders); err != nil {
			return nil, nil, err
		}
	}
	if err := s.extract(ctx, zip, dest, spool); err != nil {
		return nil, nil, err
	}
	if real, err := filepath.EvalSymlinks(dest); err == nil {
		dest = real
	}
	// Only the skills of the archive: the folder may have had others.
	for i := range folders {
		folders[i] = moved(folders[i], trial, dest)
	}
	found, faults, err := describeAll(dest, folders)
	if err == nil {
		err = s.add(found)
	}
	return found, faults, err
}

// moved returns the path of a folder below from after from was moved to another path.
func moved(folder, from, to string) string {
	return filepath.Join(to, strings.TrimPrefix(folder, from))
}

// createSpool creates a temporary folder, and returns its path without links.
func (s *Service) createSpool() (string, error) {
	err := os.MkdirAll(s.cfg.State, 0o700)
	var spool string
	if err == nil {
		if spool, err = filepath.EvalSymlinks(s.cfg.State); err == nil {
			spool, err = os.MkdirTemp(spool, "skill-*")
		}
	}
	if err != nil {
		return "", op.Errorf(op.Unavailable, "store the archive: %w", err)
	}
	return spool, nil
}

// clearFolder removes what an earlier archive with the same name left at dest, and returns the
// path. If other registered skills are there, it returns the path with a number.
func (s *Service) clearFolder(dest, trial string, folders []string) (string, error) {
	s.restore()
	parent := filepath.Dir(dest)
	err := os.MkdirAll(parent, 0o755)
	if err == nil {
		parent, err = filepath.EvalSymlinks(parent)
	}
	if err != nil {
		return "", op.Errorf(op.Unavailable, "store the files of the archive: %w", err)
	}
	dest = filepath.Join(parent, filepath.Base(dest))
	path := dest
	for n := 2; s.hasOthers(path, trial, folders); n++ {
		path = fmt.Sprintf("%s-%d", dest, n)
	}
	if err := os.RemoveAll(path); err != nil {
		return "", op.Errorf(op.Unavailable, "replace the files of an earlier archive: %w", err)
	}
	return path, nil
}

// hasOthers reports whether a folder contains registered skills that the archive would not replace.
func (s *Service) hasOthers(dest, trial string, folders []string) bool {
	replaced := map[string]bool{}
	for _, folder := range folders {
		if m, err := describe(folder, moved(folder, trial, dest)); err == nil {
			replaced[m.Name] = true
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.skills {
		if (m.Path == dest || strings.HasPrefix(m.Path, dest+"/")) && !replaced[m.Name] {
			return true
		}
	}
	return false
}

// destination returns the folder to unpack an archive into.
func (s *Service) destination(file, path, name string) (string, error) {
	if path == "" {
		path = filepath.Join(s.cfg.State, "skills")
		if name == "" {
			name = strings.TrimSuffix(filepath.Base(file), filepath.Ext(file))
		}
		if !plainName().MatchString(name) {
			return "", op.Errorf(op.Invalid, "no folder to unpack into; send path, or a name of letters, digits and hyphens")
		}
	}
	dest, err := s.base.Resolve(path)
	if err != nil {
		return "", op.Errorf(op.Invalid, "register skills: %w", err)
	}
	return filepath.Join(dest, name), nil
}

// store writes an upload to a file, since it is read twice.
func (s *Service) store(file *op.File, dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "archive"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, op.Errorf(op.Unavailable, "store the archive: %w", err)
	}
	n, err := io.Copy(f, io.LimitReader(file, s.cfg.Archive.Packed+1))
	if err == nil && n > s.cfg.Archive.Packed {
		err = op.Errorf(op.Invalid, "the archive is larger than %d bytes", s.cfg.Archive.Packed)
	}
	if err != nil {
		f.Close()
		if _, ok := op.AsError(err); ok {
			return nil, err
		}
		return nil, op.Errorf(op.Unavailable, "store the archive: %w", err)
	}
	return f, nil
}

func (s *Service) extract(ctx context.Context, zip *os.File, dest, spool string) error {
	if _, err := zip.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := os.MkdirAll(dest, 0o755); err != nil {
		return op.Errorf(op.Invalid, "unpack the archive: %w", err)
	}
	_, err := archive.Unpack(ctx, zip, archive.Options{Dest: dest, Spool: spool, Limits: s.cfg.Archive, Overwrite: true})
	switch {
	case err == nil || ctx.Err() != nil:
		return err
	case errors.Is(err, archive.ErrMalformed):
		return op.Errorf(op.Invalid, "unpack the archive: %w; send a zip", err)
	}
	return op.Errorf(op.Invalid, "unpack the archive: %w", err)
}

// add registers skills, and replaces those with the same names.
func (s *Service) add(list []Metadata) error {
	s.restore()
	s.mu.Lock()
	defer s.mu.Unlock()
	next := len(s.skills)
	for _, m := range list {
		if _, ok := s.skills[m.Name]; !ok {
			next++
		}
	}
	if next > maxSkills {
		return op.Errorf(op.Exhausted, "skill limit reached (%d); delete some first", maxSkills)
	}
	for _, m := range list {
		s.skills[m.Name] = m
	}
	return s.save()
}

func (s *Service) remove(names ...string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range names {
		delete(s.skills, name)
	}
	return s.save()
}

func (s *Service) listFile() string { return filepath.Join(s.cfg.State, "skills.json") }

// save writes the folders of the skills; s.mu is held.
func (s *Service) save() error {
	var folders []string
	for _, m := range s.skills {
		folders = append(folders, m.Path)
	}
	slices.Sort(folders)
	b, err := json.Marshal(folders)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(s.cfg.State, 0o700); err != nil {
		return op.Errorf(op.Unavailable, "save the list of skills: %w", err)
	}
	err = atomicfile.Replace(s.listFile(), atomicfile.Options{Perm: 0o600, Sync: true}, func(f *os.File) error {
		_, err := f.Write(b)
		return err
	})
	if err != nil {
		return op.Errorf(op.Unavailable, "save the list of skills: %w", err)
	}
	return nil
}

// restore reads the list that an earlier server saved. It skips skills whose folder is missing or
// invalid.
func (s *Service) restore() {
	s.load.Do(func() {
		b, err := os.ReadFile(s.listFile())
		if err != nil {
			return
		}
		var folders []string
		if err := json.Unmarshal(b, &folders); err != nil {
			s.cfg.Log.Warn("cannot read list of skills", "path", s.listFile(), "error", err)
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, folder := range folders[:min(len(folders), maxSkills)] {
			if m, err := describe(folder, folder); err == nil {
				s.skills[m.Name] = m
			} else {
				s.cfg.Log.Warn("skill skipped", "path", folder, "error", err)
			}
		}
	})
}
