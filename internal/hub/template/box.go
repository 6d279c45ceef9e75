package template

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/hub/environment"
	"github.com/cove-sandbox/cove/internal/hub/internal/builder"
	"github.com/cove-sandbox/cove/internal/hub/internal/fault"
	"github.com/cove-sandbox/cove/internal/hub/internal/naming"
	"github.com/cove-sandbox/cove/internal/hub/internal/templatestore"
	"github.com/cove-sandbox/cove/internal/hub/lifecycle"
	"github.com/cove-sandbox/cove/internal/hub/usage"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Fleet connects to the servers of sandboxes.
type Fleet interface {
	// Send sends a request to the server of a sandbox. The caller closes the body of the response.
	Send(ctx context.Context, id string, r *http.Request) (*http.Response, error)
}

// boxes runs the sandboxes of builds.
type boxes struct{ *Service }

// annotationBuild marks the sandbox of a build.
const annotationBuild = "cove/build"

// Time limits.
const (
	maxBuild = 2 * time.Hour
	maxStep  = time.Hour
)

// serverEnv configures the server in the sandbox of a build: it serves steps, and leaves no files on the disk.
var serverEnv = map[string]string{
	"AIO_BUILD": "true", "HOME": "/dev/shm/aio", "AIO_STATE": "/dev/shm/aio/state", "AIO_SESSION_LOGS": "/dev/shm/aio/logs",
	"WORKSPACE": "/", "AIO_ACTIVITY": "false", "AIO_JUPYTER_WARM": "0", "DISABLE_JUPYTER": "true", "DISABLE_BROWSER": "true",
	"DISABLE_CODE_SERVER": "true",
}

// Create implements builder.Sandboxes.
func (s boxes) Create(ctx context.Context, b templatestore.Build, d builder.Disk) (string, error) {
	origin, layer := d.Origin, d.Layer
	volumes, err := s.volumes(ctx, b.Owner, d.Caches)
	if err != nil {
		return "", err
	}
	env := environment.Environment{Name: environment.Custom, Image: origin.Image}
	if origin.Image == "" {
		if env, err = s.Environments.Find(origin.Environment); err != nil {
			return "", err
		}
	}
	if layer != "" {
		env.Image = ""
	}
	env.Env, env.Workdir, env.Command, env.Args, env.Port = nil, "/", nil, nil, 0
	in := lifecycle.CreateIn{Env: serverEnv}
	sb, err := s.Sandboxes.MakeFrom(ctx, env, in, func(spec *sandbox.Spec) {
		spec.Snapshot, spec.Root, spec.Environment, spec.Volumes = layer, true, environment.Custom, volumes
		spec.Lifetime = sandbox.Lifetime{Timeout: maxBuild + time.Minute, IdleTimeout: sandbox.Never}
		most := s.Provider.Abilities()
		raise := func(to *int64, n, most int64) {
			if n > 0 && most > 0 {
				n = min(n, most)
			}
			if n > 0 {
				*to = n
			}
		}
		raise(&spec.Resources.CPULimit, b.CPU, most.MaxCPU)
		raise(&spec.Resources.MemoryLimit, b.Memory, most.MaxMemory)
		raise(&spec.Resources.Disk, b.Disk, 0)
		spec.Resources.CPU = min(spec.Resources.CPU, spec.Resources.CPULimit)
		spec.Resources.Memory = min(spec.Resources.Memory, spec.Resources.MemoryLimit)
		naming.Annotate(spec, annotationBuild, b.ID)
	})
	return sb.ID, err
}

// volumes creates the missing volumes of caches.
func (s boxes) volumes(ctx context.Context, owner string, caches []builder.Cache) (list []sandbox.Volume, err error) {
	if len(caches) == 0 {
		return nil, nil
	}
	p, ok := s.Provider.(sandbox.Volumer)
	if !ok || !s.Provider.Abilities().Volume {
		return nil, fault.CannotDo(s.Provider.Abilities().Provider, "keep volumes, which caches need")
	}
	for _, c := range caches {
		list = append(list, sandbox.Volume{Name: c.Volume, Target: c.Target})
	}
	if err := sandbox.CheckVolumes(list); err != nil {
		return nil, &builder.StepError{Message: "cache: " + err.Error()}
	}
	for _, v := range list {
		room := s.Quota.OpenRoom(ctx, owner)
		err := room.Take(1) // an owner without free quota cannot create one
		room.Release()
		if err == nil {
			_, err = p.CreateVolume(ctx, owner, v.Name)
		}
		if err != nil && !errors.Is(err, sandbox.ErrConflict) {
			return nil, fault.FromProvider("", err)
		}
	}
	return list, nil
}

// request sends a request to the server of a sandbox and returns its response, or its error.
func (s boxes) request(ctx context.Context, id, path, media string, body io.Reader) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://server/v1/build/"+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Content-Type", media)
	res, err := s.Fleet.Send(ctx, id, r)
	if err != nil {
		return nil, fmt.Errorf("reach the sandbox of the build: %w", err)
	}
	if res.StatusCode < 300 {
		return res, nil
	}
	defer res.Body.Close()
	var reply struct{ Message, Detail, Error string }
	text, _ := io.ReadAll(io.LimitReader(res.Body, 64<<10))
	if err := json.Unmarshal(text, &reply); err != nil {
		reply.Message = string(text)
	}
	message := fmt.Sprintf("%.1000s", cmp.Or(reply.Message, reply.Detail, reply.Error))
	if res.StatusCode < 500 {
		return nil, &builder.StepError{Message: message}
	}
	return nil, op.Errorf(op.Unavailable, "the sandbox of the build failed: %s", message)
}

func guestCaches(caches []builder.Cache) []any {
	list := []any{}
	for _, c := range caches {
		list = append(list, map[string]string{"path": c.Target, "owner": c.Owner, "mode": c.Mode})
	}
	return list
}

func guestSecrets(secrets []builder.Secret) []any {
	list := []any{}
	for _, c := range secrets {
		list = append(list, map[string]string{"id": c.ID, "value": c.Value, "target": c.Target, "env": c.Env, "owner": c.Owner,
			"mode": c.Mode})
	}
	return list
}

// Run implements builder.Sandboxes.
func (s boxes) Run(ctx context.Context, id string, c builder.Command, line func(string)) (builder.End, error) {
	body, err := json.Marshal(map[string]any{"args": c.Args, "env": c.Env, "user": c.User, "workdir": c.Workdir, "owner": c.Owner,
		"caches": guestCaches(c.Caches), "secrets": guestSecrets(c.Secrets), "timeout": maxStep.Seconds()})
	if err != nil {
		return builder.End{}, err
	}
	res, err := s.request(ctx, id, "run", "application/json", bytes.NewReader(body))
	if err != nil {
		return builder.End{}, err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, 256<<10)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data:")
		if !ok {
			continue
		}
		var e struct {
			Text, Reason string
			Done         bool
			Code         int
		}
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			return builder.End{}, op.Errorf(op.Unavailable, "the sandbox of the build sent an invalid reply")
		}
		if e.Done {
			return builder.End{Code: e.Code, Reason: e.Reason}, nil
		}
		line(e.Text)
	}
	if err := context.Cause(ctx); err != nil {
		return builder.End{}, err
	}
	return builder.End{}, op.Errorf(op.Unavailable, "the sandbox of the build ended during a step; it may have run out of memory or disk")
}

// Copy implements builder.Sandboxes.
func (s boxes) Copy(ctx context.Context, id string, t builder.Transfer, files io.Reader) ([]string, error) {
	sources, err := json.Marshal(t.Sources)
	if err != nil {
		return nil, err
	}
	r, w := io.Pipe()
	defer r.Close()
	form := multipart.NewWriter(w)
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		w.CloseWithError(func() error {
			for name, value := range map[string]string{"sources": string(sources), "to": t.To, "owner": t.Owner, "mode": t.Mode,
				"unpack": strconv.FormatBool(t.Unpack), "keep": strconv.FormatBool(t.Stage)} {
				if err := form.WriteField(name, value); err != nil {
					return err
				}
			}
			part, err := form.CreateFormFile("file", "files.tar")
			if err != nil {
				return err
			}
			if _, err := io.Copy(part, files); err != nil {
				return err
			}
			return form.Close()
		}())
	}()
	res, err := s.request(ctx, id, "copy", form.FormDataContentType(), r)
	r.Close()
	<-sent
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	var out struct{ Skipped []string }
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&out); err != nil {
		return nil, op.Errorf(op.Unavailable, "the sandbox of the build sent an invalid reply")
	}
	return out.Skipped, nil
}

// Pack implements builder.Sandboxes.
func (s boxes) Pack(ctx context.Context, id string, sources []string) (io.ReadCloser, error) {
	body, err := json.Marshal(map[string]any{"sources": sources})
	if err != nil {
		return nil, err
	}
	res, err := s.request(ctx, id, "pack", "application/json", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	return res.Body, nil
}

// Save implements builder.Sandboxes.
func (s boxes) Save(ctx context.Context, id string, what builder.Saving) (int64, error) {
	owner, layer := what.Owner, what.Layer
	l, ok := s.Provider.(sandbox.Layerer)
	if !ok {
		return 0, fault.CannotDo(s.Provider.Abilities().Provider, "build templates")
	}
	if err := s.settle(ctx, id, what); err != nil {
		return 0, err
	}
	saved, err := l.SaveLayer(ctx, id, layer)
	if err != nil {
		return 0, fault.FromProvider("", err)
	}
	room := s.Quota.OpenRoom(ctx, owner)
	defer room.Release()
	if err := room.Take(saved.Size); err != nil {
		return 0, errors.Join(err, s.Provider.(sandbox.Snapshotter).DeleteSnapshot(context.WithoutCancel(ctx), owner, layer))
	}
	s.Quota.CountDisk(usage.Disk{Kind: "snapshot", Owner: owner, Name: layer}, saved.Size)
	return saved.Size, nil
}

// settle ends the processes of steps, and makes sure that the disk contains no secret.
func (s boxes) settle(ctx context.Context, id string, what builder.Saving) error {
	except := []string{}
	for _, c := range what.Caches {
		except = append(except, c.Target)
	}
	body, err := json.Marshal(map[string]any{"secrets": what.Secrets, "since": what.Since, "except": except})
	if err != nil {
		return err
	}
	res, err := s.request(ctx, id, "settle", "application/json", bytes.NewReader(body))
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var found struct{ Secret, Path string }
	if err := json.NewDecoder(io.LimitReader(res.Body, 1<<20)).Decode(&found); err != nil {
		return op.Errorf(op.Unavailable, "the sandbox of the build sent an invalid reply")
	}
	if found.Secret != "" {
		return &builder.StepError{Message: fmt.Sprintf(
			"it wrote the secret %s to %.500s, which would be in the template; remove the file in the same step", found.Secret, found.Path)}
	}
	return nil
}

// Keep implements builder.Sandboxes: the owner gets an ordinary sandbox with the disk of the build, whose server is not
// root.
func (s boxes) Keep(ctx context.Context, id string) (string, error) {
	p, ok := s.Provider.(sandbox.Snapshotter)
	if !ok {
		return "", fault.CannotDo(s.Provider.Abilities().Provider, "take snapshots")
	}
	sb, err := s.Provider.Get(ctx, id)
	if err != nil {
		return "", err
	}
	name := fmt.Sprintf("build-%.8s", sb.Spec.Annotations[annotationBuild])
	if _, err := p.Snapshot(ctx, id, name); err != nil {
		return "", err
	}
	in := lifecycle.CreateIn{Name: name, Keep: true, Snapshot: name}
	_, err = s.Sandboxes.MakeFrom(ctx, environment.Environment{Name: environment.Custom}, in, func(*sandbox.Spec) {})
	return name, errors.Join(err, p.DeleteSnapshot(ctx, sb.Spec.Owner, name))
}

// Delete implements builder.Sandboxes.
func (s boxes) Delete(ctx context.Context, id string) { s.Sandboxes.Discard(ctx, id) }
