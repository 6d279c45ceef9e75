package sandbox

import (
	"testing"
	"time"
)

// BenchmarkList lists as many sandboxes as one hub may have.
func BenchmarkList(b *testing.B) {
	t := NewTable[int]()
	began := time.Now()
	for i := range 10000 {
		sb := Sandbox{ID: NewID(), State: Running, Created: began.Add(time.Duration(i*7919%10000) * time.Second),
			Spec: Spec{Owner: "ann", Env: map[string]string{"A": "b"}, Labels: map[string]string{"a": "b"},
				Annotations: map[string]string{"c": "d"}}}
		sb.Spec.Name = sb.ID
		if _, err := t.Adopt(sb, i); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if list, err := t.List(Filter{}); err != nil || len(list) != 10000 {
			b.Fatal(len(list), err)
		}
	}
}
