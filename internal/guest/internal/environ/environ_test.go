package environ

import (
	"slices"
	"testing"
)

func TestEnviron(t *testing.T) {
	env := []string{"A=1", "AB=2", "EMPTY=", "A=3"}
	for _, c := range []struct {
		name, want string
		ok         bool
	}{{"A", "3", true}, {"AB", "2", true}, {"EMPTY", "", true}, {"B", "", false}} {
		if got, ok := Lookup(env, c.name); got != c.want || ok != c.ok || Get(env, c.name) != c.want {
			t.Errorf("%s: got %q, %v, want %q, %v", c.name, got, ok, c.want, c.ok)
		}
	}
	got, want := Set(slices.Clone(env), "A", "4"), []string{"AB=2", "EMPTY=", "A=4"}
	if !slices.Equal(got, want) {
		t.Errorf("Set: got %q, want %q", got, want)
	}
	got, want = Merge(env, map[string]*string{"A": nil, "Z": new("9"), "AB": new("5")}), []string{"EMPTY=", "AB=5", "Z=9"}
	if !slices.Equal(got, want) {
		t.Errorf("Merge: got %q, want %q", got, want)
	}
}
