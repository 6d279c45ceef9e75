package cove

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

// defaultURL is where a hub listens unless it is told otherwise.
const defaultURL = "http://127.0.0.1:10000"

// signInHelp says where keys come from and how the command line takes them.
const signInHelp = `sign in with "cove login URL", or set COVE_API_KEY to a key. The hub's operator finds the ` +
	`first key in admin.key in the hub's state directory ` +
	`(/var/lib/cove for root, ~/.local/state/cove for others) and creates more with "cove key add NAME". On the ` +
	`hub's machine, the user that runs the hub needs no key`

// hubContext is a hub that somebody signed in to.
type hubContext struct {
	URL   string `json:"url"`
	Key   string `json:"key,omitempty"`
	Token string `json:"token,omitempty"`
}

// contexts is the content of the contexts file.
type contexts struct {
	Current  string                `json:"current"`
	Contexts map[string]hubContext `json:"contexts"`
}

// contextFile is where hubs and their keys are remembered, readable by its owner only.
type contextFile struct{ path string }

func (f contextFile) read() (contexts, error) {
	c := contexts{Contexts: map[string]hubContext{}}
	b, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &c)
	}
	if err != nil {
		return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("read the contexts file %q: %v; mend or remove it", f.path, err)}
	}
	if c.Contexts == nil {
		c.Contexts = map[string]hubContext{}
	}
	return c, nil
}

// write replaces the file. Nobody but its owner can read it at any moment.
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

// target finds the hub that the verbs call and completes to with it. From the first to the
// last, what counts is the flag or COVE_URL, the flag --context or COVE_CONTEXT, the current
// context, this user's own hub on this machine, and the default address. Credentials of a
// context are sent only to its own URL; variables override them.
type target struct {
	where   config.CoveClient
	file    contextFile
	context string // flag
	to      *cli.Client
	once    sync.Once
	err     error
}

func (t *target) resolve() error {
	t.once.Do(func() { t.err = t.find() })
	return t.err
}

func (t *target) find() error {
	given := hubContext{URL: t.to.URL, Key: t.where.Key, Token: t.where.Token}
	found, err := t.choose(given.URL)
	if err != nil {
		return err
	}
	if given.Key+given.Token != "" {
		found.Key, found.Token = given.Key, given.Token
	}
	t.to.URL, t.to.Key, t.to.Token = found.URL, found.Key, found.Token
	return nil
}

// choose returns the hub to call. url is the one that was given, if any.
func (t *target) choose(url string) (hubContext, error) {
	saved, err := t.file.read()
	if err != nil {
		return hubContext{}, err
	}
	name := t.context
	if name != "" {
		c, ok := saved.Contexts[name]
		if !ok {
			return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("no context %q; see cove context list", name)}
		}
		if url != "" && trimURL(url) != trimURL(c.URL) {
			return c, &cli.Error{Code: cli.ExitUsage, Msg: fmt.Sprintf("context %q is for %s; give either a context or a URL", name, c.URL)}
		}
		return c, nil
	}
	if url != "" {
		for _, c := range saved.Contexts {
			if trimURL(c.URL) == trimURL(url) {
				return c, nil
			}
		}
		if own, ok := findOwnHub(t.where.State); ok && trimURL(own.URL) == trimURL(url) {
			return own, nil
		}
		return hubContext{URL: url}, nil
	}
	if c, ok := saved.Contexts[saved.Current]; ok {
		return c, nil
	}
	if own, ok := findOwnHub(t.where.State); ok {
		return own, nil
	}
	return hubContext{URL: defaultURL}, nil
}

func trimURL(url string) string { return strings.TrimRight(url, "/") }

// Files of a hub in its state folder, which only its user can read.
const (
	ownURLFile    = "hub.url"
	ownSocketFile = "hub.sock"
	ownKeyFile    = "admin.key"
)

// findOwnHub finds the hub that this user runs on this machine. That its socket answers
// shows that the address is still the hub's, and that the key goes to nobody else.
func findOwnHub(state string) (hubContext, bool) {
	if state == "" {
		return hubContext{}, false
	}
	b, err := os.ReadFile(filepath.Join(state, ownURLFile))
	if err != nil {
		return hubContext{}, false
	}
	own := hubContext{URL: strings.TrimSpace(string(b))}
	socket, ok := strings.CutPrefix(own.URL, "unix:")
	if !ok {
		socket = filepath.Join(state, ownSocketFile)
	}
	c, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return hubContext{}, false
	}
	c.Close()
	if key, err := os.ReadFile(filepath.Join(state, ownKeyFile)); err == nil {
		own.Key = strings.TrimSpace(string(key))
	}
	return own, own.URL != ""
}

// addContexts adds login, logout and the verbs of contexts.
func addContexts(root *cobra.Command, v *verbs, t *target) {
	noun := cli.Noun(root, "context")
	noun.Short = "Switch between hubs that you signed in to"
	noun.AddCommand(t.listVerb(v.std), t.useVerb(v.std), t.removeVerb())
	root.AddCommand(t.loginVerb(v), t.logoutVerb())
}

func (t *target) loginVerb(v *verbs) *cobra.Command {
	var name, key string
	var token bool
	cmd := &cobra.Command{Use: "login [URL]", Short: "Sign in to a hub and remember it", Args: cli.Arguments(0, 1),
		Long: "Sign in to a hub and remember it as a context, which all verbs use from then on. The key is asked " +
			"for, or read from standard input if that is no terminal. " +
			"It is stored in a file that only you can read. The hub is asked first whether the key is valid.",
		Example: "  cove login https://cove.example.com\n  cove login https://cove.example.com --context work < key.txt"}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := hubContext{URL: trimURL(firstOf(t.to.URL, args, defaultURL))}
		secret, err := readSecret(v.std, key, "key of "+c.URL+": ")
		if err != nil {
			return err
		}
		if token {
			c.Token = secret
		} else {
			c.Key = secret
		}
		at := cli.Client{URL: c.URL, ServerUsers: t.to.ServerUsers, ServerUsersVariable: t.to.ServerUsersVariable}
		hub, err := client.New(client.Config{URL: c.URL, Key: c.Key, Token: c.Token, Agent: v.agent, Transport: at.Transport()})
		if err != nil {
			return &cli.Error{Code: cli.ExitUsage, Msg: err.Error()}
		}
		defer hub.Close()
		info, err := hub.Info(cmd.Context())
		if err != nil {
			return withExitCode(fmt.Errorf("sign in to %s: %w", c.URL, err))
		}
		saved, err := t.file.read()
		if err != nil {
			return err
		}
		if name = firstOf(t.context, nil, contextName(c.URL)); name == "" {
			name = "default"
		}
		saved.Contexts[name], saved.Current = c, name
		if err := t.file.write(saved); err != nil {
			return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
		}
		fmt.Fprintf(v.text.Err, "signed in to %s (version %s) as context %q\n", c.URL, info.Version, name)
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

func (t *target) logoutVerb() *cobra.Command {
	return &cobra.Command{Use: "logout [CONTEXT]", Short: "Forget a hub and its key", Args: cli.Arguments(0, 1),
		ValidArgsFunction: t.completeContexts,
		Long: "Forget a hub and its key: the current context, or the one that is named. The key stays valid; an " +
			"admin revokes it with cove key revoke.",
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file.read()
			if err != nil {
				return err
			}
			return t.remove(saved, firstOf(t.context, args, saved.Current))
		}}
}

func (t *target) remove(saved contexts, name string) error {
	if _, ok := saved.Contexts[name]; !ok {
		return &cli.Error{Code: cli.ExitNotFound, Msg: fmt.Sprintf("no context %q; see cove context list", name)}
	}
	delete(saved.Contexts, name)
	if saved.Current == name {
		saved.Current = ""
	}
	if err := t.file.write(saved); err != nil {
		return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
	}
	return nil
}

func (t *target) listVerb(std host.Streams) *cobra.Command {
	return &cobra.Command{Use: "list", Aliases: []string{"ls"}, Short: "List the contexts; * marks the current one", Args: cli.Arguments(0, 0),
		RunE: func(*cobra.Command, []string) error {
			saved, err := t.file.read()
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

func (t *target) useVerb(std host.Streams) *cobra.Command {
	return &cobra.Command{Use: "use CONTEXT", Short: "Make a context the current one", Args: cli.Arguments(1, 1),
		ValidArgsFunction: t.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file.read()
			if err != nil {
				return err
			}
			c, ok := saved.Contexts[args[0]]
			if !ok {
				return &cli.Error{Code: cli.ExitNotFound, Msg: fmt.Sprintf("no context %q; see cove context list", args[0])}
			}
			saved.Current = args[0]
			if err := t.file.write(saved); err != nil {
				return &cli.Error{Code: cli.ExitFailed, Msg: err.Error()}
			}
			fmt.Fprintf(std.Err, "now using %s\n", c.URL)
			return nil
		}}
}

func (t *target) removeVerb() *cobra.Command {
	return &cobra.Command{Use: "rm CONTEXT", Short: "Forget a context and its key", Args: cli.Arguments(1, 1),
		ValidArgsFunction: t.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			saved, err := t.file.read()
			if err != nil {
				return err
			}
			return t.remove(saved, args[0])
		}}
}

func (t *target) completeContexts(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	saved, err := t.file.read()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return slices.Sorted(maps.Keys(saved.Contexts)), cobra.ShellCompDirectiveNoFileComp
}
