package app

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// TestReadersHaveAList: the operations for callers with read-only access are listed individually,
// and include all built-in pages. None of them starts a process or shows data of processes. Watchers may
// also see what the sandbox shows.
func TestReadersHaveAList(t *testing.T) {
	want := strings.Fields(`auth_check bash_sessions display_control docs_llms docs_openapi file_download health_ready 
		observe_status preview_absproxy preview_proxy sandbox_activity sandbox_get_context shell_get_session_stats shell_list_sessions
		sandbox_identity skills_list vnc_page watch_list`)
	checkReaders(t, op.AccessRead, want)
	checkReaders(t, op.AccessWatch, append(want, "sandbox_mirror"))
}

// checkReaders checks which operations callers with an access may use.
func checkReaders(t *testing.T, access op.Access, want []string) {
	t.Helper()
	table := blank(t).Table
	var got []string
	for _, o := range table.All() {
		r, err := http.NewRequest(http.MethodGet, "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(op.AccessHeader, string(access))
		r = r.WithContext(op.WithCall(t.Context(), &op.Call{}))
		if _, err := admit(r, o); err == nil && !o.Public && o.Tag != "pages" {
			got = append(got, o.Name)
		} else if e, ok := op.AsError(err); err != nil && (!ok || e.Code != op.Denied) {
			t.Errorf("%s: got %v, want denied", o.Name, err)
		}
		if !op.CallOf(r.Context()).Reader {
			t.Errorf("%s: got Reader false, want true", o.Name)
		}
		r.Header.Del(op.AccessHeader)
		if _, err := admit(r, o); err != nil {
			t.Errorf("%s: without a hub got %v, want no error", o.Name, err)
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("callers with access %s may use\n%s\nwant\n%s", access, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
