package proc

import (
	"strings"
	"testing"
)

// TestRebase: the base environment can change until the first start.
func TestRebase(t *testing.T) {
	r := New(Config{Env: []string{"PATH=/bin:/usr/bin", "A=old"}})
	defer r.Close()
	r.Warm()
	if err := r.Rebase([]string{"PATH=/bin:/usr/bin", "B=new"}); err != nil {
		t.Fatal(err)
	}
	res, err := r.Run(t.Context(), Command{Path: "env"})
	if out := string(res.Stdout); err != nil || !strings.Contains(out, "B=new") || strings.Contains(out, "A=old") {
		t.Errorf("%q %v, want containing \"B=new\", without \"A=old\"", out, err)
	}
	if err := r.Rebase(nil); err == nil {
		t.Error("the environment changed after a process was started")
	}
}
