package workbench

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// installTime bounds an installation.
const installTime = 20 * time.Minute

// Component describes a component.
type Component struct {
	Name       string   `json:"name" doc:"Name of the component"`
	Title      string   `json:"title" doc:"Display name"`
	Path       string   `json:"path" doc:"Path of its page"`
	State      string   `json:"state" enum:"absent,installing,idle,starting,ready,failed" doc:"idle: installed, starts on the first visit"`
	Why        string   `json:"why,omitempty" doc:"Reason of the state"`
	Installing *Install `json:"installing,omitempty" doc:"Progress of the installation, if one is running"`
	Failure    string   `json:"failure,omitempty" doc:"Why the last installation failed"`
}

// Install is the progress of an installation.
type Install struct {
	Percent int    `json:"percent" doc:"Progress in percent"`
	Step    string `json:"step" doc:"Current step"`
}

// installation is the installation of a program. At most one runs at a time.
type installation struct {
	mu      sync.Mutex
	now     *Install
	done    chan struct{} // closed when the current installation has ended
	failure string        // error of the last installation
}

// List lists the components.
func (s *Service) List(context.Context, op.None) ([]Component, error) {
	list := []Component{}
	for _, p := range s.programs {
		list = append(list, p.describe())
	}
	return list, nil
}

func (p *program) describe() Component {
	c := Component{Name: p.name, Title: p.title, Path: p.path + "/"}
	c.State, c.Why = p.state()
	i := &p.install
	i.mu.Lock()
	defer i.mu.Unlock()
	c.Failure = i.failure
	if i.now != nil {
		c.State, c.Why, c.Installing = "installing", "", new(*i.now)
	}
	return c
}

// InstallIn names a component.
type InstallIn struct {
	Name string `path:"name" doc:"Name of the component, such as code-server"`
	Wait bool   `json:"wait" default:"true" doc:"Wait for the end; otherwise the list of components reports the progress"`
}

// Install installs a component.
func (s *Service) Install(ctx context.Context, in InstallIn) (Component, error) {
	p, ok := s.find(in.Name)
	if !ok {
		return Component{}, op.Errorf(op.NotFound, "component %q is unknown or disabled; use one of %s", in.Name,
			strings.Join(s.Components(), ", "))
	}
	if _, err := p.find(); err == nil {
		op.Say(ctx, "%s is already installed", p.title)
		return p.describe(), nil
	}
	done, err := p.beginInstall()
	if err != nil {
		return Component{}, err
	}
	if !in.Wait {
		return p.describe(), nil
	}
	select {
	case <-done:
	case <-ctx.Done():
		return Component{}, op.Errorf(op.Canceled, "the installation of %s continues in the background", p.title)
	}
	c := p.describe()
	if c.Failure != "" {
		return Component{}, op.Errorf(op.Unavailable, "install %s: %s", p.title, c.Failure)
	}
	op.Say(ctx, "%s is installed", p.title)
	return c, nil
}

// beginInstall starts an installation, unless one is running. The returned channel is closed at its end.
func (p *program) beginInstall() (<-chan struct{}, error) {
	i := &p.install
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.now != nil {
		return i.done, nil
	}
	if len(p.s.cfg.Components) == 0 {
		return nil, op.Errorf(op.Unsupported, "no folder for components; set AIO_COMPONENTS")
	}
	if !p.s.begin() {
		return nil, op.Errorf(op.Unavailable, "%w", errStopping)
	}
	i.now, i.failure, i.done = &Install{Step: "Preparing"}, "", make(chan struct{})
	go func() {
		defer p.s.work.Done()
		err := p.runRecipe()
		i.mu.Lock()
		defer i.mu.Unlock()
		if err != nil {
			i.failure = err.Error()
			p.s.cfg.Log.Warn("cannot install component", "component", p.name, "error", err)
		}
		i.now = nil
		close(i.done)
	}()
	return i.done, nil
}

// runRecipe runs the script that installs the component.
func (p *program) runRecipe() error {
	ctx, cancel := context.WithTimeoutCause(p.s.life, installTime, fmt.Errorf("timed out after %v", installTime))
	defer cancel()
	dir := filepath.Join(p.s.cfg.Components[0], p.name)
	res, err := p.s.cfg.Runner.Run(ctx, proc.Command{
		Path: "bash", Args: []string{"-c", p.recipe, p.name, dir}, Dir: "/", Stdout: &progress{i: &p.install}, Limit: outputLimit, Session: true,
	})
	if err != nil {
		return err
	}
	if res.Exit.Code != 0 {
		return fmt.Errorf("the installer %v: %s", res.Exit, lastLines(res.Stderr, 3))
	}
	if _, err := p.find(); err != nil {
		return fmt.Errorf("the installer created no working component in %q: %w", dir, err)
	}
	return nil
}

// lastLines returns the last lines of a text.
func lastLines(b []byte, n int) string {
	lines := strings.Split(strings.ToValidUTF8(strings.TrimSpace(string(b)), "\uFFFD"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// progress parses the output of a recipe: lines of "@PERCENT STEP".
type progress struct {
	i    *installation
	rest []byte
}

func (p *progress) Write(b []byte) (int, error) {
	p.rest = append(p.rest, b...)
	for {
		end := bytes.IndexByte(p.rest, '\n')
		if end < 0 {
			break
		}
		p.take(string(p.rest[:end]))
		p.rest = p.rest[end+1:]
	}
	if len(p.rest) > outputLimit {
		p.rest = nil
	}
	return len(b), nil
}

func (p *progress) take(line string) {
	mark, step, _ := strings.Cut(line, " ")
	percent, err := strconv.Atoi(strings.TrimPrefix(mark, "@"))
	if !strings.HasPrefix(mark, "@") || err != nil {
		return
	}
	p.i.mu.Lock()
	defer p.i.mu.Unlock()
	if p.i.now != nil {
		*p.i.now = Install{Percent: min(max(percent, 0), 100), Step: step}
	}
}
