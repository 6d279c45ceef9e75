package quota

import (
	"errors"
	"testing"
)

// TestBuffers: requests of one tenant cannot use the memory of all tenants.
func TestBuffers(t *testing.T) {
	t.Parallel()
	k := New(Config{RequestMemory: 100, Limits: func(who string) Limits {
		return map[string]Limits{"ann": {RequestMemory: 60}, "none": {RequestMemory: -1}}[who]
	}})
	refused := func(err error, of string) {
		t.Helper()
		if e, ok := errors.AsType[*Exceeded](err); !ok || e.Tenant != of || e.RetryAfter == 0 || e.Error() == "" {
			t.Errorf("got %v, want a rejection that names %q", err, of)
		}
	}
	a, b, c := k.Buffer("ann"), k.Buffer("ann"), k.Buffer("bob")
	for _, err := range []error{a.Grow(30), a.Grow(20), b.Grow(10), c.Grow(40)} {
		if err != nil {
			t.Errorf("got %v, want the buffer granted", err)
		}
	}
	refused(b.Grow(1), "ann")
	refused(c.Grow(1), "")
	refused(k.Buffer("none").Grow(1), "none")
	a.Free()
	a.Free()
	if err := c.Grow(50); err != nil {
		t.Errorf("got %v, want the released memory granted", err)
	}
	b.Free()
	c.Free()
	if n := k.Tenants(); len(n) != 0 || k.buffered != 0 {
		t.Errorf("got tenants %v with %d bytes, want none", n, k.buffered)
	}
}
