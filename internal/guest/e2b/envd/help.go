package envd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// HelpCommand is the argument with which the program starts itself to handle files as another user.
const HelpCommand = "envd-help"

// helpIn is a request to the helper process.
type helpIn struct {
	Path   string `json:"path"`
	To     string `json:"to,omitempty"`
	Depth  int    `json:"depth,omitempty"`
	Offset int64  `json:"offset,omitempty"` // of the first byte to read
	Owner  *owner `json:"owner,omitempty"`  // of created files and folders, if it is not the user that creates them

	Recursive bool `json:"recursive,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// owner is the owner of a file.
type owner struct{ User, Group int }

// helpOut is the response of the helper process.
type helpOut struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *connect.Error  `json:"error,omitempty"`
}

// verbs are the file operations.
var verbs = map[string]func(helpIn) (any, error){"stat": stat, "mkdir": makeDir, "move": move, "remove": remove, "list": list, "open": open}

// orRoot is called with the result of a file operation of a user. If the user lacks permission, root performs the operation for
// the user, like E2B's daemon, which is root: clients of this service may select root as the user of a call.
func (u *users) orRoot(a account, in helpIn, err error, asRoot func(helpIn) error) error {
	if !isDenied(err) || a.owner == root.owner || !u.hasRoot() {
		return err
	}
	in.Owner = &owner{a.owner, a.group}
	result := asRoot(in)
	if denied, ok := errors.AsType[*userError](result); ok {
		return connect.Errorf(connect.PermissionDenied, "%v: %s", err, denied.reason)
	}
	return result
}

func isDenied(err error) bool {
	if e, ok := op.AsError(err); ok {
		return e.Code == op.Denied
	}
	e, ok := errors.AsType[*connect.Error](err)
	return ok && e.Code == connect.PermissionDenied
}

// asUser performs a file operation as a user, or as root for the user.
func (s *Service) asUser(ctx context.Context, u account, verb string, in helpIn, out any) error {
	var err error
	if u.own {
		err = asSelf(verb, in, out)
	} else {
		err = s.asOther(ctx, u, verb, in, out)
	}
	err = s.users.orRoot(u, in, err, func(in helpIn) error { return s.asOther(ctx, root, verb, in, out) })
	if verb != "stat" && verb != "list" {
		s.watchers.flushAll(ctx)
	}
	return err
}

// asSelf performs a file operation as the user of this process.
func asSelf(verb string, in helpIn, out any) error {
	result, err := verbs[verb](in)
	if err != nil {
		return fileError(in.Path, err)
	}
	switch out := out.(type) {
	case *entryOut:
		*out = result.(entryOut)
	case *entriesOut:
		*out = *result.(*entriesOut)
	}
	return nil
}

func (s *Service) helper(u account, verb string, in helpIn) (proc.Command, error) {
	request, err := json.Marshal(in)
	if err != nil {
		return proc.Command{}, err
	}
	args := append([]string{"-n", "-H", "-u", u.name, "--"}, s.Helper...)
	return proc.Command{Path: "sudo", Dir: "/", Args: append(args, verb, string(request)), Limit: 64 << 20, Grace: -1}, nil
}

// asOther performs a file operation in a process of another user.
func (s *Service) asOther(ctx context.Context, u account, verb string, in helpIn, out any) error {
	c, err := s.helper(u, verb, in)
	if err != nil {
		return err
	}
	res, err := s.Runner.Run(ctx, c)
	if err != nil {
		return err
	}
	return readHelp(u, res.Stdout, res.Stderr, out)
}

// userError means that sudo denied to become another user.
type userError struct {
	error
	reason string // of sudo
}

// Unwrap returns the error for the caller.
func (e *userError) Unwrap() error { return e.error }

func readHelp(u account, stdout, stderr []byte, out any) error {
	var got helpOut
	if err := json.Unmarshal(stdout, &got); err != nil {
		text := fmt.Sprintf("%.300s", strings.TrimSpace(string(stderr)))
		return &userError{connect.Errorf(connect.PermissionDenied, "cannot run as user %q: %s", u.name, text), text}
	}
	if got.Error != nil {
		return got.Error
	}
	return json.Unmarshal(got.Result, out)
}

// Help is the main function of the helper process, which performs one file operation as another user and writes the result.
// watches is called to watch a folder.
func Help(args []string, in io.Reader, out io.Writer, watches func() Watches) error {
	if len(args) != 2 {
		return fmt.Errorf("%s: only the sandbox's server may run this command", HelpCommand)
	}
	var what helpIn
	if err := json.Unmarshal([]byte(args[1]), &what); err != nil {
		return err
	}
	switch args[0] {
	case "read":
		f, err := os.Open(what.Path)
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err = f.Seek(what.Offset, io.SeekStart); err == nil {
			_, err = io.Copy(out, f)
		}
		return err
	case "watch":
		return helpWatch(what, in, out, watches())
	case "write":
		return answer(out, what.Path, none{}, writeFile(what, in, func() {}))
	}
	do := verbs[args[0]]
	if do == nil {
		return errors.New("unknown request " + args[0])
	}
	result, err := do(what)
	return answer(out, what.Path, result, err)
}

func answer(out io.Writer, path string, result any, err error) error {
	var o helpOut
	if err != nil {
		if e, ok := errors.AsType[*connect.Error](fileError(path, err)); ok {
			o.Error = e
		}
	} else if o.Result, err = json.Marshal(result); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(o)
}
