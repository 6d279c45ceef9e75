package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Short is a verb for a common use of an operation. Some of its fields are fixed, some are
// arguments, some are flags, and the others have their defaults.
type Short struct {
	Words string // such as "gui tap"
	Op    string // name of the operation
	Doc   string
	Fixed map[string]string
	Args  []string // required
	Flags []string
}

// AddShort adds the verbs to root.
func AddShort(root *cobra.Command, c Config, list ...Short) {
	for _, s := range list {
		o, ok := c.Table.Get(s.Op)
		if !ok {
			panic("cli: no operation " + s.Op)
		}
		words := strings.Fields(s.Words)
		parent := addNoun(root, words[0], words[0])
		parent.AddCommand(c.newShort(o, s, words[1]))
	}
}

func (c Config) newShort(o op.Op, s Short, word string) *cobra.Command {
	r := &run{Config: c, op: o}
	var flags []*op.Field
	for _, name := range s.Args {
		f := *fieldOf(o, name)
		f.Required = true
		r.positional = append(r.positional, &f)
	}
	for _, name := range s.Flags {
		flags = append(flags, fieldOf(o, name))
	}
	r.given = map[string][]string{}
	for name, value := range s.Fixed {
		r.given[fieldOf(o, name).Name] = []string{value}
	}
	summary, _, _ := strings.Cut(s.Doc, ". ")
	cmd := &cobra.Command{
		Use: usage(word, r.positional), Short: strings.TrimSuffix(summary, "."), Long: s.Doc,
		RunE: func(cmd *cobra.Command, args []string) error { return r.do(cmd.Context(), args) },
	}
	for _, f := range slices.Concat(r.positional, flags) {
		addFlag(cmd, r, f)
	}
	cmd.Flags().StringVar(&r.output, "format", "", formatUsage)
	return cmd
}

func fieldOf(o op.Op, name string) *op.Field {
	for _, f := range o.In().AllFields() {
		if f.Name == name {
			return f
		}
	}
	panic(fmt.Sprintf("cli: %s has no field %q", o.Name, name))
}
