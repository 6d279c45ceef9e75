package mode

import (
	"os"
	"testing"
)

func TestApply(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		from os.FileMode
		want os.FileMode
	}{
		{"644", 0, 0o644}, {"0o755", 0, 0o755}, {"4755", 0, 0o755 | os.ModeSetuid}, {"u+x", 0o644, 0o744}, {"+x", 0o644, 0o755},
		{"a-w", 0o666, 0o444}, {"go=r", 0o777, 0o744}, {"u=rw,go-rwx", 0o777, 0o600}, {"u+s", 0o755, 0o755 | os.ModeSetuid},
		{"+X", 0o644, 0o644}, {"+X", 0o744, 0o755}, {"+t", 0o777, 0o777 | os.ModeSticky},
	} {
		if got, err := Apply(c.text, c.from); err != nil || got != c.want {
			t.Errorf("%s of %v: %v %v, want %v", c.text, c.from, got, err, c.want)
		}
	}
	for _, bad := range []string{"", "9", "x", "u", "u+z", "z+x", "77777", "u+x,"} {
		if _, err := Apply(bad, 0o644); err == nil {
			t.Errorf("%q: got no error, want one", bad)
		}
	}
}
