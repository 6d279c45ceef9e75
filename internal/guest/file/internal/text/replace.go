package text

import (
	"bytes"
	"context"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/file/internal/access"
	"github.com/cove-sandbox/cove/internal/guest/internal/pyerr"
)

// ReplaceIn is a string and its replacement.
type ReplaceIn struct {
	File   string `json:"file" doc:"Path of the file"`
	OldStr string `json:"old_str" doc:"Exact text to replace"`
	NewStr string `json:"new_str" doc:"Replacement text"`
	Sudo   bool   `json:"sudo" default:"false" nullable:"true" doc:"Edit as root"`
}

// ReplaceOut reports the number of replacements.
type ReplaceOut struct {
	File          string `json:"file" doc:"Absolute path"`
	ReplacedCount int    `json:"replaced_count" doc:"Number of replacements"`
}

// Replace replaces all occurrences of a string.
func (s *Service) Replace(ctx context.Context, in ReplaceIn) (ReplaceOut, error) {
	path, err := s.files.Resolve("replace", in.File)
	if err != nil {
		return ReplaceOut{}, err
	}
	if in.OldStr == "" {
		return ReplaceOut{}, pyerr.New("replace", path, pyerr.Spec{Kind: pyerr.Target},
			"replace %s: old_str is empty; send the text to replace", path)
	}
	count := 0
	err = s.files.WithLock(ctx, path, func(target string) error {
		old, err := s.files.Load(ctx, "replace", path, in.Sudo)
		if err != nil {
			return err
		}
		if count = bytes.Count(old, []byte(in.OldStr)); count == 0 {
			return nil
		}
		changed := bytes.ReplaceAll(old, []byte(in.OldStr), []byte(in.NewStr))
		if s.files.NeedsSudo(in.Sudo) {
			return s.files.WriteAsRoot(ctx, path, changed, false)
		}
		return access.WriteFile(target, changed)
	})
	if err != nil {
		return ReplaceOut{}, pyerr.From("replace", path, err)
	}
	if count == 0 {
		op.Say(ctx, "%s does not contain the text; nothing was changed", path)
	}
	return ReplaceOut{File: path, ReplacedCount: count}, nil
}
