// Package cli derives commands from the table of operations, which call a running server over
// HTTP: aio <noun> <verb> --flag. It owns flags, output and exit codes, and is independent of
// services.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/api/spell"
)

// Exit codes.
const (
	ExitOK       = 0
	ExitFailed   = 1 // the operation failed
	ExitUsage    = 2 // invalid command line or input
	ExitConnect  = 3 // the server cannot be reached
	ExitAuth     = 4 // not authenticated or not permitted
	ExitNotFound = 5 // route or resource not found
	ExitServer   = 6 // the server failed
)

// ExitHelp documents the exit codes.
const ExitHelp = `Exit codes:
  0  success
  1  the operation failed; standard error describes why
  2  invalid command line or input
  3  the server cannot be reached
  4  not authenticated, or not permitted
  5  route or resource not found
  6  server error
  130  interrupted with Ctrl-C`

// Client describes how to reach the server.
type Client struct {
	URL   string // http://host:port, https://…, or unix:/path
	Token string
	Key   string
	Help  string       // what to do if the server cannot be reached
	HTTP  *http.Client // nil means a client for URL
	// Resolve sets the fields above before the first request; nil means that they are set.
	Resolve func() error
	// ServerUsers are the local users (names or IDs), besides root and this one, whose server is
	// trusted on a loopback address or a Unix socket; * means all. ServerUsersVariable sets them.
	ServerUsers         []string
	ServerUsersVariable string
	// SignIn is added to the error if the server rejects the credentials: it describes how to sign in.
	SignIn string
}

// Config of the commands.
type Config struct {
	Table  *op.Table
	Client *Client // its fields are read when a command runs
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Person func() bool // reports whether standard output is for a person

	// Short prints lists as columns and text unmodified, even to a pipe. Otherwise a pipe gets
	// JSON.
	Short bool
	// Program is the name of the program if errors of the server should name its commands and flags instead of routes and fields.
	Program string
	// Units are the units of numeric fields that are durations, by name. Their flags accept durations such as 90m.
	Units map[string]Unit
	// Select compiles an expression of --jq and -o jsonpath.
	Select Select
	// Presets are the defaults of verbs, by operation name.
	Presets map[string]Preset
	// Complete returns the possible values of a field for shell completion; nil means none.
	Complete func(ctx context.Context, o op.Op, field string) []string
}

// Preset contains the defaults of a verb.
type Preset struct {
	Set     map[string]string // values of fields
	Output  string            // output format
	Aliases []string          // additional names of the verb
	Raw     bool              // write the bytes of a response unmodified to a terminal
}

// Error carries an exit code.
type Error struct {
	Code int
	Msg  string
}

// Error is safe to print: the message may have come from a sandbox.
func (e *Error) Error() string { return Escape(e.Msg) }

// Code returns the exit code of an error that a command returned. Errors without a code are
// from the command-line parser.
func Code(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ExitUsage
}

const formatUsage = "Output format: table or json (default: table on a terminal, json otherwise)"

// Add adds a command for every noun to root, and below it one for every verb.
func Add(root *cobra.Command, c Config) {
	for _, o := range c.Table.All() {
		if o.NoVerb {
			continue
		}
		words := o.Words()
		parent := root
		for i, word := range words[:len(words)-1] {
			parent = addNoun(parent, word, strings.Join(words[:i+1], " "))
		}
		parent.AddCommand(c.newVerb(o, words[len(words)-1]))
	}
}

// addNoun returns the command of a noun, and adds it if it does not exist.
func addNoun(parent *cobra.Command, word, path string) *cobra.Command {
	for _, cmd := range parent.Commands() {
		if cmd.Name() == word {
			return cmd
		}
	}
	cmd := &cobra.Command{
		Use: word, Short: "Commands for " + path,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &Error{ExitUsage, fmt.Sprintf("unknown command %q%s", args[0], suggest(cmd, args[0]))}
			}
			return cmd.Help()
		},
	}
	parent.AddCommand(cmd)
	return cmd
}

// suggest returns a hint with the most similar command.
func suggest(cmd *cobra.Command, typed string) string {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(append(names, sub.Name()), sub.Aliases...)
		}
	}
	if near := spell.Nearest(typed, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", cmd.CommandPath()+" "+near)
	}
	return fmt.Sprintf("; see %s --help", cmd.CommandPath())
}

// CheckCommand is the Args of a root command: it rejects unknown commands and suggests one.
func CheckCommand(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return &Error{ExitUsage, fmt.Sprintf("unknown command %q%s", args[0], suggest(cmd, args[0]))}
	}
	return nil
}

// Arguments accepts from minimum to maximum arguments; a negative maximum means any number.
func Arguments(minimum, maximum int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < minimum:
			return &Error{ExitUsage, "missing argument; use " + cmd.UseLine()}
		case maximum >= 0 && len(args) > maximum:
			return &Error{ExitUsage, fmt.Sprintf("unexpected argument %q; use %s", args[maximum], cmd.UseLine())}
		}
		return nil
	}
}

func (c Config) newVerb(o op.Op, word string) *cobra.Command {
	fields := o.In().AllFields()
	var positional []*op.Field
	for _, f := range fields {
		if f.Arg {
			positional = append(positional, f)
		}
	}
	preset := c.Presets[o.Name]
	run := &run{Config: c, op: o, positional: positional, given: map[string][]string{}, preset: preset}
	cmd := &cobra.Command{
		Use: usage(word, positional), Short: o.Summary(), Long: o.Doc, Aliases: preset.Aliases,
		RunE: func(cmd *cobra.Command, args []string) error { return run.do(cmd.Context(), args) },
	}
	// A verb with one path argument accepts several.
	if len(positional) == 1 && positional[0].Source == op.Path && o.Out != nil && !o.Binary {
		cmd.Use += "…"
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error { return run.doEach(cmd.Context(), args) }
	}
	if word == "list" {
		cmd.Aliases = append(cmd.Aliases, "ls")
	}
	for _, f := range fields {
		addFlag(cmd, run, f)
	}
	if c.Complete != nil && len(positional) > 0 {
		cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			f := positional[min(len(args), len(positional)-1)]
			return c.Complete(cmd.Context(), o, f.Name), cobra.ShellCompDirectiveNoFileComp
		}
	}
	flags := cmd.Flags()
	flags.StringVar(&run.output, "format", "", formatUsage)
	flags.Lookup("format").Hidden = true
	if o.Out == nil || o.Binary {
		flags.StringVarP(&run.file, "output", "o", "", "Write the output to this file instead of standard output")
	} else {
		addOutput(cmd, run)
	}
	if o.Stream != nil && o.Call != nil && flags.Lookup("stream") == nil {
		flags.BoolVar(&run.stream, "stream", false, "Print the output as it arrives")
	}
	return cmd
}

// usage returns the words of a verb with its arguments.
func usage(word string, positional []*op.Field) string {
	for _, f := range positional {
		word += " [" + strings.ToUpper(f.Name) + "]"
		if inner(f.Type).Kind == op.Array {
			word += "..."
		}
	}
	return word
}

// common marks flags that every verb has.
const common = "common"

var formats = []string{"table", "wide", "json", "yaml", "name"}

// addOutput adds the flags that select the output format.
func addOutput(cmd *cobra.Command, r *run) {
	flags := cmd.Flags()
	usage := "Output format: table, wide, json, yaml, name or jsonpath=TEMPLATE (default: table on a terminal, json otherwise)"
	if r.Short {
		usage = "Output format: table, wide, json, yaml, name or jsonpath=TEMPLATE"
	}
	flags.StringVarP(&r.output, "output", "o", "", usage)
	flags.Lookup("output").Annotations = map[string][]string{common: nil}
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(formats, cobra.ShellCompDirectiveNoFileComp))
	if flags.Lookup("jq") == nil {
		flags.StringVar(&r.jq, "jq", "", "Expression of jq that selects from the JSON output")
		flags.Lookup("jq").Annotations = map[string][]string{common: nil}
	}
	if flags.Lookup("quiet") == nil {
		flags.BoolVarP(&r.quiet, "quiet", "q", false, "Print names only: short for --output name")
		flags.Lookup("quiet").Annotations = map[string][]string{common: nil}
	}
}

func flagName(f *op.Field) string { return strings.ReplaceAll(f.Name, "_", "-") }

func addFlag(cmd *cobra.Command, r *run, f *op.Field) {
	name := flagName(f)
	if name == "help" || name == "format" || name == "output" || name == "stream" {
		name = "in-" + name
	}
	v := &value{run: r, field: f}
	usage := strings.ReplaceAll(f.Doc, "`", "'")
	if f.Required {
		usage += " (required)"
	}
	if len(f.Enum) > 0 {
		usage += fmt.Sprintf(" (one of: %s)", strings.Join(words(f.Enum), ", "))
	}
	flag := &pflag.Flag{Name: name, Shorthand: f.Short, Usage: usage, Value: v, DefValue: strings.Trim(string(f.Default), `"`)}
	if inner(f.Type).Kind == op.Bool {
		flag.NoOptDefVal = "true"
		if flag.DefValue == "" {
			flag.DefValue = "false"
		}
	}
	cmd.Flags().AddFlag(flag)
	for _, alias := range f.Aliases {
		alias = strings.ReplaceAll(alias, "_", "-")
		if cmd.Flags().Lookup(alias) == nil {
			cmd.Flags().AddFlag(&pflag.Flag{Name: alias, Usage: usage, Value: v, DefValue: flag.DefValue,
				NoOptDefVal: flag.NoOptDefVal, Hidden: true})
		}
	}
	if len(f.Enum) > 0 {
		list := words(f.Enum)
		_ = cmd.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return list, cobra.ShellCompDirectiveNoFileComp
		})
	}
}

func words(list []any) []string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = fmt.Sprint(v)
	}
	return out
}

func inner(t *op.Type) *op.Type {
	for t.Kind == op.Pointer {
		t = t.Elem
	}
	return t
}

// value is a flag that records the given values, so that "not given" and "empty" are
// distinct.
type value struct {
	run   *run
	field *op.Field
}

func (v *value) Set(s string) error {
	kind := inner(v.field.Type).Kind
	if old := v.run.given[v.field.Name]; old != nil && kind != op.Array && kind != op.Map {
		v.run.given[v.field.Name] = []string{s}
		return nil
	}
	v.run.given[v.field.Name] = append(v.run.given[v.field.Name], s)
	return nil
}

func (v *value) String() string {
	if v.run == nil {
		return ""
	}
	return strings.Join(v.run.given[v.field.Name], ",")
}

// Type is shown by the help.
func (v *value) Type() string {
	if v.run != nil && v.run.Units[v.field.Name].Size > 0 {
		return "duration"
	}
	return v.field.Type.Label()
}

// Tree prints every command with its flags, for the golden file.
func Tree(root *cobra.Command, w io.Writer) {
	root.InitDefaultHelpCmd()
	for _, cmd := range root.Commands() {
		if cmd.Hidden || slices.Contains([]string{"help", "completion"}, cmd.Name()) {
			continue
		}
		if len(cmd.Commands()) > 0 {
			Tree(cmd, w)
			continue
		}
		fmt.Fprintf(w, "%s\n", strings.TrimSuffix(cmd.UseLine(), " [flags]"))
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			if _, ok := f.Annotations[common]; !ok && f.Name != "help" && f.Name != "format" && !f.Hidden {
				fmt.Fprintf(w, "    --%s %s\n", f.Name, f.Value.Type())
			}
		})
	}
}
