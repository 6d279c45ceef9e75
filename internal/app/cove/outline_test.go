package cove

import (
	"bytes"
	"testing"

	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/api"
	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/app/cove/verb"
	"github.com/cove-sandbox/cove/internal/surface/cli"
)

// A build without the hub has the same verbs as a build with it.
func TestOutlineHasAllVerbs(t *testing.T) {
	t.Parallel()
	whole, err := verbTable("0")
	if err != nil {
		t.Fatal(err)
	}
	outline, err := op.ReadOutline(api.CoveVerbs)
	if err != nil {
		t.Fatal(err)
	}
	tree := func(table *op.Table) string {
		root := &cobra.Command{Use: "cove"}
		cli.Add(root, cli.Config{Table: table, Client: &cli.Client{}, Short: true, Presets: verb.Presets})
		var out bytes.Buffer
		cli.Tree(root, &out)
		return out.String()
	}
	if got, want := tree(outline), tree(whole); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for _, o := range outline.All() {
		if w, _ := whole.Get(o.Name); o.Summary() != w.Summary() || o.Binary != w.Binary || o.Style != w.Style ||
			(o.Out == nil) != (w.Out == nil) || (o.Stream == nil) != (w.Stream == nil) {
			t.Errorf("%s: got %+v, want %+v", o.Name, o.Spec, w.Spec)
		}
	}
}
