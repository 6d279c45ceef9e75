package text

import (
	"testing"
	"time"
)

func FuzzRegex(f *testing.F) {
	for _, e := range []string{`(?P<a>x)(?P=a)`, `[]]`, `[^]a]`, `a{,3}`, `(?P=`, `\`, `[\]`} {
		f.Add(e)
	}
	f.Fuzz(func(t *testing.T, expr string) {
		if re, err := compile(expr); err == nil {
			re.MatchTimeout = 50 * time.Millisecond
			_, _ = re.MatchString("some text 123")
		}
	})
}
