package builder

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/recipe"
)

// stage is a stage in progress, or a finished one.
type stage struct {
	*run
	name   string // empty: the template
	base   Base
	config recipe.Config
	layer  string // the disk so far; empty: that of the origin
	size   int64  // of its layers
	parent string // its identity
	made   string // the working directory that exists
	box    string // sandbox; empty: none
	boxAt  string // the layer on whose disk it is
	held   []Cache
}

// changesDisk reports whether a step has a layer.
func (r *stage) changesDisk(s recipe.Step, name string) bool {
	return s.Kind == recipe.Run || s.Kind == recipe.Copy || s.Kind == recipe.User && r.build.Recipe.Login || name == ""
}

// step executes a step, or finds its layer.
func (r *stage) step(ctx context.Context, s recipe.Step, name string) error {
	began := time.Now()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var err error
	if r.config, err = r.config.Apply(s); err != nil {
		return &StepError{name, fmt.Sprintf("%s: %v", where(s, name), err)}
	}
	result := templatestore.StepResult{Text: s.String()}
	if r.changesDisk(s, name) {
		l, cached, err := r.find(ctx, s, name)
		if err != nil {
			return r.fail(ctx, err, name)
		}
		if result.Layer, result.Cached, result.Size = l.ID, cached, l.Size; cached {
			r.log("info", name, "CACHED %s", s)
		}
		r.size += l.Size
		r.layer, r.parent = l.ID, "layer:"+l.ID
		if s.Kind == recipe.Run || name == "" {
			r.made = r.config.Workdir
		}
	}
	result.Took = time.Since(began)
	r.build.Steps = append(r.build.Steps, result)
	return nil
}

// where names a step in an error: by its line in the file of the user, if it has one.
func where(s recipe.Step, name string) string {
	if s.Line > 0 {
		return fmt.Sprintf("line %d (%.200s)", s.Line, s)
	}
	return fmt.Sprintf("step %s (%.200s)", name, s)
}

// fail keeps the sandbox of a failed step, if requested.
func (r *stage) fail(ctx context.Context, err error, name string) error {
	failed, ok := errors.AsType[*StepError](err)
	if !ok {
		return err
	}
	out := &StepError{name, r.mask.Replace(failed.Message)}
	if r.Keep && r.box != "" {
		kept, err := r.cfg.Sandboxes.Keep(context.WithoutCancel(ctx), r.box)
		if err != nil {
			r.log("warn", name, "cannot keep the sandbox: %v", err)
			return out
		}
		out.Message += fmt.Sprintf("; inspect it with: cove shell %s", kept)
	}
	return out
}

// key identifies the result of a step.
func (r *stage) key(s recipe.Step, files string) string {
	h := sha256.New()
	for _, part := range []string{"cove-layer-1", r.build.Owner, r.parent, string(s.Canonical(r.config, r.build.Recipe.Login, files))} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// find returns the layer of a step. If there is none, the first build that needs it runs the step, and others wait.
func (r *stage) find(ctx context.Context, s recipe.Step, name string) (l templatestore.Layer, cached bool, err error) {
	var digest string
	switch {
	case s.Kind == recipe.Copy && s.From != "":
		digest = "stage:" + r.stages[s.From].parent
	case s.Kind == recipe.Copy:
		f, ok := r.cfg.Store.File(r.build.Owner, s.Files)
		if !ok {
			return l, false, &StepError{name, "its files were not uploaded, or were deleted; upload them again"}
		}
		digest = f.Digest
	}
	key := r.key(s, digest)
	if r.build.Recipe.Force || s.Force {
		l, err := r.create(ctx, s, name, key, digest)
		return l, false, err
	}
	id := r.build.Owner + "\x00" + key
	for {
		r.mu.Lock()
		if l, ok := r.cfg.Store.FindLayer(r.build.Owner, key); ok {
			r.mu.Unlock()
			return l, true, nil
		}
		other := r.steps[id]
		if other == nil {
			own := &shared{done: make(chan struct{})}
			r.steps[id] = own
			r.mu.Unlock()
			l, own.err = r.create(ctx, s, name, key, digest)
			r.mu.Lock()
			delete(r.steps, id)
			r.mu.Unlock()
			close(own.done)
			return l, false, own.err
		}
		r.mu.Unlock()
		r.log("info", name, "waiting for another build that runs the same step")
		select {
		case <-other.done:
		case <-ctx.Done():
			return l, false, context.Cause(ctx)
		}
		// A step with mounts can have failed because of a secret of the other build.
		if failed, ok := errors.AsType[*StepError](other.err); ok && len(s.Mounts) == 0 {
			return l, false, failed
		}
	}
}

// create runs a step and saves its layer.
func (r *stage) create(ctx context.Context, s recipe.Step, name, key, digest string) (l templatestore.Layer, err error) {
	s = r.config.Resolve(s)
	caches := r.cachesOf(s)
	release, err := r.lock(ctx, r.build.Owner, caches)
	if err != nil {
		return l, err
	}
	defer release()
	if err := r.move(ctx, caches); err != nil {
		return l, err
	}
	saving := Saving{Owner: r.build.Owner, Since: time.Now().Add(-clockSlack), Caches: caches}
	switch {
	case name == "": // only the working directory
		err = r.command(ctx, recipe.Step{Kind: recipe.Run, Args: []string{"/bin/sh", "-c", ":"}, User: "root"}, name)
	case s.Kind == recipe.Run:
		saving.Secrets, err = r.secretsOf(s, name)
		if err == nil {
			err = r.command(ctx, s, name)
		}
	case s.Kind == recipe.User:
		err = r.addUser(ctx, s, name)
	case s.Kind == recipe.Copy:
		err = r.copyFiles(ctx, s, name, digest)
	}
	if err != nil {
		return l, err
	}
	l = templatestore.Layer{ID: strings.ToLower(rand.Text()), Key: key}
	saving.Layer = l.ID
	if l.Size, err = r.cfg.Sandboxes.Save(ctx, r.box, saving); err != nil {
		if failed, ok := errors.AsType[*StepError](err); ok {
			return l, &StepError{name, where(s, name) + ": " + failed.Message}
		}
		return l, fmt.Errorf("save the disk after step %s: %w", name, err)
	}
	if r.boxAt = l.ID; len(caches) > 0 {
		r.drop(ctx) // other builds wait for the caches
	}
	return l, r.cfg.Store.PutLayer(r.build.Owner, l)
}

// clockSlack covers the resolution of times of files.
const clockSlack = 2 * time.Second

// cachesOf returns the caches of a step.
func (r *stage) cachesOf(s recipe.Step) (list []Cache) {
	for _, m := range s.Mounts {
		if m.Kind == recipe.Cache {
			sum := sha256.Sum256([]byte(m.ID))
			list = append(list, Cache{Volume: "build-" + hex.EncodeToString(sum[:8]), Target: m.Target, Owner: m.Owner, Mode: m.Mode})
		}
	}
	slices.SortFunc(list, func(a, b Cache) int { return strings.Compare(a.Volume, b.Volume) })
	return list
}

// lock waits until no other build uses the caches. A build holds them only during one step, so builds cannot block each
// other forever.
func (b *Builder) lock(ctx context.Context, owner string, caches []Cache) (release func(), err error) {
	var held []string
	release = func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		for _, key := range held {
			close(b.caches[key])
			delete(b.caches, key)
		}
	}
	for _, c := range caches { // ordered by name, so that two builds do not wait for each other
		key := owner + "\x00" + c.Volume
		for !slices.Contains(held, key) {
			b.mu.Lock()
			other := b.caches[key]
			if other == nil {
				b.caches[key] = make(chan struct{})
				held = append(held, key)
			}
			b.mu.Unlock()
			if other == nil {
				break
			}
			select {
			case <-other:
			case <-ctx.Done():
				release()
				return nil, context.Cause(ctx)
			}
		}
	}
	return release, nil
}

// secretsOf returns the secrets of a step that were given.
func (r *stage) secretsOf(s recipe.Step, name string) (map[string]string, error) {
	list := map[string]string{}
	for _, m := range s.Mounts {
		value, ok := r.Secrets[m.ID]
		switch {
		case m.Kind != recipe.Secret:
		case ok:
			list[m.ID] = value
		case m.Required:
			return nil, &StepError{name, fmt.Sprintf("%s: the secret %s is required; give it with --secret id=%[2]s", where(s, name), m.ID)}
		}
	}
	return list, nil
}

// move makes sure that the sandbox is on the disk so far and has the caches.
func (r *stage) move(ctx context.Context, caches []Cache) (err error) {
	if r.box != "" && r.boxAt == r.layer && slices.Equal(r.held, caches) {
		return nil
	}
	r.drop(ctx)
	if r.box, err = r.cfg.Sandboxes.Create(ctx, *r.build, Disk{r.base.Origin, r.layer, caches}); err != nil {
		return fmt.Errorf("create the sandbox of the build: %w", err)
	}
	r.boxAt, r.held = r.layer, caches
	return nil
}

func (r *stage) drop(ctx context.Context) {
	if r.box != "" {
		r.cfg.Sandboxes.Delete(context.WithoutCancel(ctx), r.box)
	}
	r.box, r.held = "", nil
}

// loginShell starts a command in a login shell, which need not be bash.
const loginShell = `if [ -x /bin/bash ]; then exec /bin/bash -l -c "$0"; else exec /bin/sh -l -c "$0"; fi`

func (r *stage) command(ctx context.Context, s recipe.Step, name string) error {
	c := Command{Args: s.Args, User: r.config.User, Workdir: cmp.Or(r.config.Workdir, "/"), Owner: r.config.User, Caches: r.held}
	c.Env = maps.Clone(s.Vars)
	if c.Env == nil {
		c.Env = map[string]string{}
	}
	maps.Copy(c.Env, r.config.Env)
	if s.Command != "" {
		c.Args = []string{"/bin/sh", "-c", s.Command}
		if r.build.Recipe.Login {
			c.Args = []string{"/bin/sh", "-c", loginShell, s.Command}
		}
	}
	if s.User != "" {
		c.User = s.User
	}
	for _, m := range s.Mounts {
		if value, ok := r.Secrets[m.ID]; ok && m.Kind == recipe.Secret {
			c.Secrets = append(c.Secrets, Secret{m.ID, value, m.Target, m.Env, m.Owner, m.Mode})
		}
	}
	end, err := r.cfg.Sandboxes.Run(ctx, r.box, c, func(text string) { r.log("info", name, "%s", text) })
	if err != nil {
		return err
	}
	return r.explain(s, name, end)
}

// explain returns the error of a command that has failed, for E2B in the words that its clients compare.
func (r *stage) explain(s recipe.Step, name string, end End) error {
	what := s.Command
	if what == "" {
		what = strings.Join(s.Args, " ")
	}
	switch {
	case end.Code == 0 && end.Reason == "":
		return nil
	case r.build.Recipe.Login && strings.HasPrefix(end.Reason, "invalid username"):
		return &StepError{name, fmt.Sprintf("failed to run command '%s': command failed: unauthenticated: %s", what, end.Reason)}
	case r.build.Recipe.Login && end.Reason == "":
		return &StepError{name, fmt.Sprintf("failed to run command '%s': exit status %d", what, end.Code)}
	case end.Reason != "":
		return &StepError{name, where(s, name) + ": " + end.Reason}
	}
	return &StepError{name, fmt.Sprintf("%s: it failed with exit code %d; see the log above", where(s, name), end.Code)}
}

// addUserScript creates a user that does not exist. The user "user" is another name of the sandbox's own user, if there
// is one.
const addUserScript = `set -e
if [ "$1" = user ]; then
	[ "$(id -un 1000 2> /dev/null)" != user ] || exit 0
elif id -u "$1" > /dev/null 2>&1; then
	exit 0
fi
first() {
	{ printf '%s\n' "$2"; grep -v '^user:' "$1" || true; } > "$1.new"
	cat "$1.new" > "$1"
	rm "$1.new"
}
if [ "$1" = user ] && line=$(grep -m 1 '^[^:]*:[^:]*:1000:' /etc/passwd); then
	home=$(printf '%s' "$line" | cut -d : -f 6)
	[ -e /home/user ] || ln -s "$home" /home/user
	first /etc/group "user:x:$(printf '%s' "$line" | cut -d : -f 4):"
	first /etc/passwd "user:x:1000:$(printf '%s' "$line" | cut -d : -f 4)::/home/user:/bin/bash"
elif command -v useradd > /dev/null; then
	useradd -m -s /bin/bash "$1"
else
	id=1001
	while grep -q "^[^:]*:[^:]*:$id:" /etc/passwd /etc/group; do id=$((id + 1)); done
	echo "$1:x:$id:" >> /etc/group
	echo "$1:x:$id:$id::/home/$1:/bin/sh" >> /etc/passwd
	mkdir -p "/home/$1"
	chown "$id:$id" "/home/$1"
fi`

func (r *stage) addUser(ctx context.Context, s recipe.Step, name string) error {
	user, _, _ := strings.Cut(r.config.User, ":")
	if _, err := strconv.Atoi(user); err == nil {
		return nil
	}
	c := Command{Args: []string{"/bin/sh", "-c", addUserScript, "sh", user}, User: "root", Workdir: "/"}
	end, err := r.cfg.Sandboxes.Run(ctx, r.box, c, func(text string) { r.log("info", name, "%s", text) })
	if err != nil {
		return err
	}
	return r.explain(recipe.Step{Kind: recipe.Run, Command: s.String()}, name, end)
}

func (r *stage) copyFiles(ctx context.Context, s recipe.Step, name, digest string) error {
	t := Transfer{Sources: s.Sources, To: s.To, Owner: s.Owner, Mode: s.Mode, Unpack: s.Unpack, Stage: s.From != ""}
	if t.Owner == "" && r.build.Recipe.Login {
		t.Owner = r.config.User
	}
	var files io.ReadCloser
	var err error
	if s.From != "" {
		from := r.stages[s.From]
		defer from.drop(ctx)
		if err := from.move(ctx, nil); err != nil {
			return err
		}
		files, err = r.cfg.Sandboxes.Pack(ctx, from.box, s.Sources)
	} else {
		files, err = r.cfg.Store.OpenFile(r.build.Owner, s.Files, digest)
	}
	if err == nil {
		defer files.Close()
		var skipped []string
		skipped, err = r.cfg.Sandboxes.Copy(ctx, r.box, t, files)
		for _, text := range skipped {
			r.log("warn", name, "not copied: %s", text)
		}
	}
	if failed, ok := errors.AsType[*StepError](err); ok {
		return &StepError{name, where(s, name) + ": " + failed.Message}
	}
	return err
}
