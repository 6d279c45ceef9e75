package envd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/cove-sandbox/cove/internal/guest/internal/connect"
	"github.com/cove-sandbox/cove/internal/system/proc"
)

// HelpCommand is the argument with which the program starts itself to handle files as another user.
const HelpCommand = "envd-help"

// helpIn is a request to the helper process.
type helpIn struct {
	Path  string `json:"path"`
	To    string `json:"to,omitempty"`
	Depth int    `json:"depth,omitempty"`
	Owner int    `json:"owner,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"`
}

// helpOut is the response of the helper process.
type helpOut struct {
	Result json.RawMessage `json:"result,omitempty"`
	Error  *connect.Error  `json:"error,omitempty"`
}

// verbs are the file operations.
var verbs = map[string]func(helpIn) (any, error){"stat": stat, "mkdir": makeDir, "move": move, "remove": remove, "list": list}

// asUser performs a file operation as a user.
func (s *Service) asUser(ctx context.Context, u account, verb string, in helpIn, out any) error {
	if !u.own {
		return s.asOther(ctx, u, verb, in, out)
	}
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

func readHelp(u account, stdout, stderr []byte, out any) error {
	var got helpOut
	if err := json.Unmarshal(stdout, &got); err != nil {
		return connect.Errorf(connect.PermissionDenied, "cannot run as user %q: %.300s", u.name, stderr)
	}
	if got.Error != nil {
		return got.Error
	}
	return json.Unmarshal(got.Result, out)
}

// Help is the main function of the helper process, which performs one file operation as another user and writes the result.
func Help(args []string, in io.Reader, out io.Writer) error {
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
		_, err = io.Copy(out, f)
		return err
	case "write":
		return answer(out, what.Path, none{}, writeFile(what, in))
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
