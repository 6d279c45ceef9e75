package cove

import (
	"reflect"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/client"
	"github.com/cove-sandbox/cove/internal/recipe"
)

// TestClientHasAllOfARecipe: the Go client can express each field of a recipe. It imports no package of this module, so it has
// copies of the types.
func TestClientHasAllOfARecipe(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ own, copied any }{
		{recipe.Step{}, client.BuildStep{}}, {recipe.Mount{}, client.BuildMount{}}, {recipe.Stage{}, client.BuildStage{}},
		{recipe.Base{}, client.BuildBase{}},
	} {
		own, copied := fieldsOf(c.own), fieldsOf(c.copied)
		if strings.Join(own, " ") != strings.Join(copied, " ") {
			t.Errorf("%T has %q, %T has %q", c.own, own, c.copied, copied)
		}
	}
	all := strings.Join(fieldsOf(client.BuildOptions{}), " ")
	for _, name := range fieldsOf(recipe.Recipe{}) {
		if name != "login" && !strings.Contains(all, name) {
			t.Errorf("BuildOptions lacks %s", name)
		}
	}
}

// fieldsOf returns the names of the fields in JSON.
func fieldsOf(v any) (names []string) {
	for f := range reflect.TypeOf(v).Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}
