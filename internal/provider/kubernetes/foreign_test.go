package kubernetes

import (
	"encoding/json"
	"strings"
	"testing"
)

// A list keeps the identity of an object that is too large.
func TestBoundedObjects(t *testing.T) {
	t.Parallel()
	large := `{"metadata":{"name":"a","uid":"u","generation":3,"deletionTimestamp":"2026-01-02T03:04:05Z",` +
		`"annotations":{"x":"` + strings.Repeat("x", maxForeign) + `"}},"spec":{}}`
	small := `{"metadata":{"name":"b"},"spec":{"size":7}}`
	var list []bounded
	if err := json.Unmarshal([]byte("["+large+","+small+"]"), &list); err != nil || len(list) != 2 {
		t.Fatalf("got %d objects and error %v, want 2", len(list), err)
	}
	if len(list[0]) > 200 || !strings.Contains(string(list[0]), `"uid":"u"`) ||
		!strings.Contains(string(list[0]), "2026-01-02T03:04:05Z") || strings.Contains(string(list[0]), `"size":0`) {
		t.Errorf("got %.300s, want name, UID, deletion and size", list[0])
	}
	if string(list[1]) != small {
		t.Errorf("got %s, want it unchanged", list[1])
	}
}
