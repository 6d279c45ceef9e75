package contract

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// later are the parts of the reference that we do not serve yet: a path with all below
// it, or one route. The longest entry that fits a route counts for it. An entry must go,
// or be narrowed, as soon as one of its routes is served, so that no other can vanish
// behind it.
var later = map[string]string{
	"/v1/browser/captcha": "captcha detection is not built yet",
	"/v1/browser/cookies": "browser state is not built yet",
	"/v1/browser/network": "browser network control is not built yet",
	"/v1/browser/page":    "browser pages are not built yet",
	"/v1/browser/state":   "browser state is not built yet",
	"/v1/browser/tabs":    "browser tabs are not built yet",
	"/v1/mcp":             "the hub of tool servers is not built yet",
	"/v1/proxy":           "the egress proxy is not built yet",
	"/v1/sandbox/observe": "observation is not built yet",
	"/v1/skills":          "skills are not built yet",
}

// postponed is the entry of later that counts for a route, "" if none does.
func postponed(later map[string]string, route string) string {
	_, path, _ := strings.Cut(route, " ")
	best := ""
	for entry := range later {
		if entry == route {
			return entry
		}
		if (entry == path || strings.HasPrefix(path, entry+"/")) && len(entry) > len(best) {
			best = entry
		}
	}
	return best
}

// TestClientsOfTheReferenceWork reads the checked-in document: the goldens' own test
// holds that equal to the table of operations.
func TestClientsOfTheReferenceWork(t *testing.T) {
	t.Parallel()
	ref, ours := read(t, "testdata", "aio-openapi.json"), read(t, "..", "..", "api", "aio-openapi.json")
	routes, err := Routes(ref)
	if err != nil {
		t.Fatal(err)
	}
	found, err := Compare(ref, ours)
	if err != nil {
		t.Fatal(err)
	}
	missing := map[string]bool{}
	for _, f := range found {
		switch {
		case f.What == Missing:
			missing[f.Route] = true
		case f.Warning:
			t.Log(f)
		default:
			t.Error(f)
		}
	}
	for _, problem := range audit(later, routes, missing) {
		t.Error(problem)
	}
	t.Logf("%d of %d operations are served", len(routes)-len(missing), len(routes))
}

// audit holds the list of what comes later against what is there.
func audit(later map[string]string, routes []string, missing map[string]bool) []string {
	var problems []string
	used := map[string]bool{}
	for _, route := range routes {
		entry := postponed(later, route)
		used[entry] = true
		if missing[route] && entry == "" {
			problems = append(problems, route+" is missing: serve it, or say in later why not")
		}
		if !missing[route] && entry != "" {
			problems = append(problems, route+" is served: remove or narrow "+entry+" in later")
		}
	}
	for entry := range later {
		if !used[entry] {
			problems = append(problems, entry+" in later stands for no route of the reference: remove it")
		}
	}
	return problems
}

func TestAudit(t *testing.T) {
	t.Parallel()
	routes := []string{"GET /a", "POST /a/b", "GET /ab", "POST /a/b/c"}
	tests := []struct {
		name    string
		later   []string
		missing []string
		want    string // a part of the only problem
	}{
		{"all served", nil, nil, ""},
		{"missing", nil, []string{"GET /ab"}, "GET /ab is missing"},
		{"missing with a reason", []string{"/ab"}, []string{"GET /ab"}, ""},
		{"a path counts for all below", []string{"/a"}, []string{"GET /a", "POST /a/b", "POST /a/b/c"}, ""},
		{"but not beside", []string{"/a"}, routes, "GET /ab is missing"},
		{"one route", []string{"GET /ab"}, []string{"GET /ab"}, ""},
		{"served already", []string{"/a/b"}, []string{"POST /a/b"}, "POST /a/b/c is served"},
		{"the longest counts", []string{"/a", "/a/b"}, []string{"POST /a/b", "POST /a/b/c"}, "GET /a is served: remove or narrow /a in"},
		{"stands for nothing", []string{"/x"}, nil, "/x in later stands for no route"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			later, missing := map[string]string{}, map[string]bool{}
			for _, l := range tt.later {
				later[l] = "reason"
			}
			for _, m := range tt.missing {
				missing[m] = true
			}
			got := audit(later, routes, missing)
			if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) != 1 || !strings.Contains(got[0], tt.want)) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// TestReferenceFitsItself: a rule that finds fault with the reference itself is wrong.
func TestReferenceFitsItself(t *testing.T) {
	t.Parallel()
	ref := read(t, "testdata", "aio-openapi.json")
	found, err := Compare(ref, ref)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		t.Error(f)
	}
}

func read(t *testing.T, path ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(path...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}
