// Package cli turns the table of operations into command-line verbs that call a
// running server over HTTP: aio <noun> <verb> --flag. It owns flags, output and
// exit codes. It knows operations, never a service.
package cli

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/op"
)

// Exit codes, as the help tells them.
const (
	ExitOK      = 0
	ExitFailed  = 1 // the operation said no
	ExitUsage   = 2 // flags or input do not fit
	ExitConnect = 3 // no server answers at the address
	ExitSignIn  = 4 // credentials are missing or not enough
	ExitMissing = 5 // there is no such route or resource
	ExitServer  = 6 // the server failed
)

// ExitHelp documents the exit codes.
const ExitHelp = `Exit codes:
  0  done
  1  the operation failed; its message is on standard error
  2  the command line or the input does not fit
  3  no server answers at the address
  4  not signed in, or not allowed
  5  no such route or resource
  6  the server failed`

// Client is how the server is reached.
type Client struct {
	URL   string // http://host:port, https://…, or unix:/path
	Token string
	Key   string
	Help  string       // what to do when nobody answers
	HTTP  *http.Client // nil: made for URL
}

// Config of the verbs.
type Config struct {
	Table  *op.Table
	Client *Client // its fields are read when a verb runs
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	Person func() bool // whether a person reads standard output
}

// Error carries an exit code.
type Error struct {
	Code int
	Msg  string
}

func (e *Error) Error() string { return e.Msg }

// Code of an error that a command returned.
func Code(err error) int {
	if err == nil {
		return ExitOK
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	return ExitUsage
}

// Add gives root a command for every noun and below it one for every verb.
func Add(root *cobra.Command, c Config) {
	for _, o := range c.Table.All() {
		if o.NoVerb {
			continue
		}
		words := o.Words()
		parent := root
		for i, word := range words[:len(words)-1] {
			parent = child(parent, word, strings.Join(words[:i+1], " "))
		}
		parent.AddCommand(c.verb(o, words[len(words)-1]))
	}
}

func child(parent *cobra.Command, word, path string) *cobra.Command {
	for _, cmd := range parent.Commands() {
		if cmd.Name() == word {
			return cmd
		}
	}
	cmd := &cobra.Command{
		Use: word, Short: "Operations of " + path,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return &Error{ExitUsage, fmt.Sprintf("there is no verb %q; see %s --help", args[0], cmd.CommandPath())}
			}
			return cmd.Help()
		},
	}
	parent.AddCommand(cmd)
	return cmd
}

func (c Config) verb(o op.Op, word string) *cobra.Command {
	fields := o.In().AllFields()
	use := word
	var positional []*op.Field
	for _, f := range fields {
		if f.Arg {
			positional = append(positional, f)
			use += " [" + strings.ToUpper(f.Name) + "]"
		}
	}
	run := &run{Config: c, op: o, positional: positional, given: map[string][]string{}}
	cmd := &cobra.Command{
		Use: use, Short: o.Summary(), Long: o.Doc,
		Args: cobra.MaximumNArgs(len(positional)),
		RunE: func(cmd *cobra.Command, args []string) error { return run.do(cmd.Context(), args) },
	}
	if word == "list" {
		cmd.Aliases = []string{"ls"}
	}
	for _, f := range fields {
		addFlag(cmd, run, f)
	}
	flags := cmd.Flags()
	flags.StringVar(&run.format, "format", "", "Output: table or json (default: table for a person, json for a pipe)")
	if o.Out == nil || o.Binary {
		flags.StringVarP(&run.file, "output", "o", "", "Write the bytes to this file instead of standard output")
	}
	if o.Pump != nil && o.Call != nil && flags.Lookup("stream") == nil {
		flags.BoolVar(&run.stream, "stream", false, "Print the output while it comes")
	}
	return cmd
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
		usage += fmt.Sprintf(" (one of %v)", words(f.Enum))
	}
	flag := &pflag.Flag{Name: name, Usage: usage, Value: v, DefValue: strings.Trim(string(f.Default), `"`)}
	if inner(f.Type).Kind == op.Bool {
		flag.NoOptDefVal = "true"
		if flag.DefValue == "" {
			flag.DefValue = "false"
		}
	}
	cmd.Flags().AddFlag(flag)
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

// value is a flag that remembers what was given, so that "not given" and "empty"
// stay apart.
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

// Type is what the help shows behind the flag.
func (v *value) Type() string {
	t := inner(v.field.Type)
	names := map[op.Kind]string{
		op.String: "text", op.Bool: "bool", op.Int: "int", op.Float: "number", op.Upload: "file",
		op.Array: "list", op.Map: "key=value", op.Bytes: "base64",
	}
	if name, ok := names[t.Kind]; ok {
		return name
	}
	return "json"
}

// Tree prints every command with its flags: what the golden file holds.
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
			if f.Name != "help" && f.Name != "format" {
				fmt.Fprintf(w, "    --%s %s\n", f.Name, f.Value.Type())
			}
		})
	}
}
