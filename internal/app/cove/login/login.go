// Package login remembers the hubs that a user signed in to, and finds the hub that the command
// line calls. It owns the contexts file and the verbs login, logout and context.
package login

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/app/host"
	"github.com/cove-sandbox/cove/internal/config"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// defaultURL is the default address of a hub.
const defaultURL = "http://127.0.0.1:10000"

// Help describes where keys come from and how to sign in with one.
const Help = `sign in with "cove login URL", or set COVE_API_KEY to a key. The hub's operator finds the ` +
	`first key in admin.key in the hub's state directory ` +
	`(/var/lib/cove for root, ~/.local/state/cove for others) and creates more with "cove key add NAME". On the ` +
	`hub's machine, the user that runs the hub needs no key`

// Context is a hub with the credentials for it.
type Context struct {
	URL   string `json:"url"`
	Key   string `json:"key,omitempty"`
	Token string `json:"token,omitempty"`
}

// contexts is the content of the contexts file.
type contexts struct {
	Current  string             `json:"current"`
	Contexts map[string]Context `json:"contexts"`
}

// contextFile stores hubs and their keys. Only its owner can read it.
type contextFile struct{ path string }

func (f contextFile) read() (contexts, error) {
	c := contexts{Contexts: map[string]Context{}}
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("read the contexts file %q: %v; fix or remove it", f.path, err)}
	}
	if c.Contexts == nil {
		c.Contexts = map[string]Context{}
	}
	return c, nil
}

// write replaces the file atomically, with mode 0600 from the start.
func (f contextFile) write(c contexts) error {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the folder of contexts: %w", err)
	}
	temp, err := os.CreateTemp(dir, ".contexts-*") // with mode 0600
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	defer os.Remove(temp.Name())
	_, err = temp.Write(append(b, '\n'))
	if err = errors.Join(err, temp.Sync(), temp.Close()); err == nil {
		err = os.Rename(temp.Name(), f.path)
	}
	if err != nil {
		return fmt.Errorf("write contexts: %w", err)
	}
	return nil
}

// Target finds the hub that the verbs call. In order of precedence: the flag --hub-url or COVE_URL,
// the flag --context or COVE_CONTEXT, the current context, this user's own hub on this machine, the
// default address. Credentials of a context are sent only to its own URL; variables override them.
type Target struct {
	Settings config.CoveClient
	To       *cli.Client // completed with the address and the credentials of the hub
	Context  string      // value of --context

	once sync.Once
	err  error
}

func (t *Target) file() contextFile {
	return contextFile{filepath.Join(t.Settings.Dir, "contexts.json")}
}

// Saved returns the stored contexts.
func (t *Target) Saved() (map[string]Context, error) {
	saved, err := t.file().read()
	return saved.Contexts, err
}

// Resolve completes To.
func (t *Target) Resolve() error {
	t.once.Do(func() { t.err = t.find() })
	return t.err
}

func (t *Target) find() error {
	given := Context{URL: t.To.URL, Key: t.Settings.Key, Token: t.Settings.Token}
	found, err := t.choose(given.URL)
	if err != nil {
		return err
	}
	if given.Key+given.Token != "" {
		found.Key, found.Token = given.Key, given.Token
	}
	t.To.URL, t.To.Key, t.To.Token = found.URL, found.Key, found.Token
	return nil
}

// choose returns the hub to call. url is the one that was given, if any.
func (t *Target) choose(url string) (Context, error) {
	saved, err := t.file().read()
	if err != nil {
		return Context{}, err
	}
	name := t.Context
	if name != "" {
		c, ok := saved.Contexts[name]
		if !ok {
			return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("no context %q; see cove context list", name)}
		}
		if url != "" && TrimURL(url) != TrimURL(c.URL) {
			return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("context %q is for %s; give either a context or a URL", name, c.URL)}
		}
		return c, nil
	}
	if url != "" {
		for _, c := range saved.Contexts {
			if TrimURL(c.URL) == TrimURL(url) {
				return c, nil
			}
		}
		if own, ok := FindOwnHub(t.Settings.State); ok && TrimURL(own.URL) == TrimURL(url) {
			return own, nil
		}
		return Context{URL: url}, nil
	}
	if c, ok := saved.Contexts[saved.Current]; ok {
		return c, nil
	}
	if own, ok := FindOwnHub(t.Settings.State); ok {
		return own, nil
	}
	return Context{URL: defaultURL}, nil
}

// TrimURL returns a URL without a final slash.
func TrimURL(url string) string { return strings.TrimRight(url, "/") }

// Files of a hub in its state folder, which only its user can read.
const (
	URLFile    = "hub.url"
	SocketFile = "hub.sock"
	KeyFile    = "admin.key"
)

// FindOwnHub finds the hub that this user runs on this machine. Its socket accepts connections
// only if the address is still the hub's, so the key is not sent to another server.
func FindOwnHub(state string) (Context, bool) {
	if state == "" {
		return Context{}, false
	}
	b, err := os.ReadFile(filepath.Join(state, URLFile))
	if err != nil {
		return Context{}, false
	}
	own := Context{URL: strings.TrimSpace(string(b))}
	socket, ok := strings.CutPrefix(own.URL, "unix:")
	if !ok {
		socket = filepath.Join(state, SocketFile)
	}
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return Context{}, false
	}
	c.Close()
	if key, err := os.ReadFile(filepath.Join(state, KeyFile)); err == nil {
		own.Key = strings.TrimSpace(string(key))
	}
	return own, own.URL != ""
}

// Verbs are what the verbs of this package need.
type Verbs struct {
	Std      host.Streams
	Text     host.Streams          // escapes control characters
	Agent    string                // User-Agent
	ExitCode func(err error) error // adds the exit code to an error of the client
}

// Add adds login, logout and the verbs of contexts.
func (t *Target) Add(root *cobra.Command, v Verbs) {
	noun := cli.Noun(root, "context")
	noun.Short = "Switch between hubs that you signed in to"
	noun.AddCommand(t.listVerb(v.Std), t.useVerb(v.Std), t.removeVerb())
	root.AddCommand(t.loginVerb(v), t.logoutVerb())
}

func (t *Target) loginVerb(v Verbs) *cobra.Command {
	var name, key string
	var token bool
	cmd := &cobra.Command{Use: "login [URL]", Short: "Sign in to a hub and remember it", Args: cli.Arguments(0, 1),
		Long: "Sign in to a hub and remember it as a context, which all verbs use from then on. The command asks for the " +
			"key, or reads it from standard input if that is not a terminal. " +
			"It checks the key with the hub and stores it in a file that only you can read.",
		Example: "  cove login https://cove.example.com\n  cove login https://cove.example.com --context work < key.txt"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := Context{URL: TrimURL(firstOf(t.To.URL, args, defaultURL))}
		secret, err := readSecret(v.Std, key, "key of "+c.URL+": ")
		if err != nil {
			return err
		}
		if token {
			c.Token = secret
		} else {
			c.Key = secret
		}
		at := cli.Client{URL: c.URL, ServerUsers: t.To.ServerUsers, ServerUsersVariable: t.To.ServerUsersVariable}
		hub, err := client.New(client.Config{URL: c.URL, Key: c.Key, Token: c.Token, Agent: v.Agent, Transport: at.Transport()})
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		defer hub.Close()
		info, err := hub.Info(cmd.Context())
		if err != nil {
			return v.ExitCode(fmt.Errorf("sign in to %s: %w", c.URL, err))
		}
		saved, err := t.file().read()
		if err != nil {
			return err
		}
		if name = firstOf(t.Context, nil, contextName(c.URL)); name == "" {
			name = "default"
		}
		saved.Contexts[name], saved.Current = c, name
		if err := t.file().write(saved); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		fmt.Fprintf(v.Text.Err, "signed in to %s (version %s) as context %q\n", c.URL, info.Version, name)
		return nil
	}
	cmd.Flags().StringVar(&key, "key-file", "", "File that holds the key; - is standard input")
	cmd.Flags().BoolVar(&token, "bearer", false, "The secret is a bearer token, such as a JWT, instead of a key")
	return cmd
}

// firstOf returns the first value that is not empty.
func firstOf(given string, args []string, fallback string) string {
	for _, s := range append(slices.Clone(args), given) {
		if s != "" {
			return s
		}
	}
	return fallback
}

// contextName names a context after its host.
func contextName(url string) string {
	_, host, _ := strings.Cut(url, "://")
	host, _, _ = strings.Cut(host, "/")
	return host
}

// maxKey is larger than any credential.
const maxKey = 64 << 10

// readSecret reads a secret from a file or standard input, or asks for it without echo.
func readSecret(std host.Streams, file, prompt string) (string, error) {
	var b []byte
	var err error
	in, isFile := std.In.(*os.File)
	switch {
	case file != "" && file != "-":
		b, err = os.ReadFile(file)
	case isFile && term.IsTerminal(int(in.Fd())):
		fmt.Fprint(std.Err, prompt)
		b, err = term.ReadPassword(int(in.Fd()))
		fmt.Fprintln(std.Err)
	default:
		b, err = io.ReadAll(io.LimitReader(std.In, maxKey))
	}
	if err != nil {
		return "", &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("read the key: %v", err)}
	}
	return strings.TrimSpace(string(b)), nil
}

func (t *Target) logoutVerb() *cobra.Command {
	return &cobra.Command{Use: "logout [CONTEXT]", Short: "Forget a hub and its key", Args: cli.Arguments(0, 1),
		ValidArgsFunction: t.Complete,
		Long: "Forget a hub and its key: the current context, or the one that is named. The key stays valid; an " +
			"admin revokes it with cove key revoke.",
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file().read()
			if err != nil {
				return err
			}
			return t.remove(saved, firstOf(t.Context, args, saved.Current))
		}}
}

func (t *Target) remove(saved contexts, name string) error {
	if _, ok := saved.Contexts[name]; !ok {
		return &cli.Error{Code: cli.ExitNotFound, Msg: fmt.Sprintf("no context %q; see cove context list", name)}
	}
	delete(saved.Contexts, name)
	if saved.Current == name {
		saved.Current = ""
	}
	if err := t.file().write(saved); err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	return nil
}

func (t *Target) listVerb(std host.Streams) *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the contexts; * marks the current one", Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			saved, err := t.file().read()
			if err != nil {
				return err
			}
			tw := tabwriter.NewWriter(std.Out, 0, 0, 2, ' ', 0)
			fmt.Fprintln(tw, "CURRENT\tNAME\tURL")
			for _, name := range slices.Sorted(maps.Keys(saved.Contexts)) {
				mark := ""
				if name == saved.Current {
					mark = "*"
				}
				fmt.Fprintf(tw, "%s\t%s\t%s\n", mark, name, saved.Contexts[name].URL)
			}
			return tw.Flush()
		}}
}

func (t *Target) useVerb(std host.Streams) *cobra.Command {
	return &cobra.Command{Use: "use CONTEXT", Short: "Make a context the current one", Args: cli.Arguments(1, 1),
		ValidArgsFunction: t.Complete,
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file().read()
			if err != nil {
				return err
			}
			c, ok := saved.Contexts[args[0]]
			if !ok {
				return &cli.Error{Code: cli.ExitNotFound, Msg: fmt.Sprintf("no context %q; see cove context list", args[0])}
			}
			saved.Current = args[0]
			if err := t.file().write(saved); err != nil {
				return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
			}
			fmt.Fprintf(std.Err, "now using %s\n", c.URL)
			return nil
		}}
}

func (t *Target) removeVerb() *cobra.Command {
	return &cobra.Command{Use: "rm CONTEXT", Short: "Forget a context and its key", Args: cli.Arguments(1, 1),
		ValidArgsFunction: t.Complete,
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file().read()
			if err != nil {
				return err
			}
			return t.remove(saved, args[0])
		}}
}

// Complete completes the name of a context.
func (t *Target) Complete(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	saved, err := t.file().read()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(saved.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
