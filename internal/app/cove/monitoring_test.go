package cove

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/internal/config"
)

// The dashboard and the alert rules use only metrics and labels that a hub exports.
func TestMonitoringUsesRealMetrics(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(c *config.Cove) { c.TenantSandboxes = 2 })
	user, _ := r.key("acme", "user")
	for _, name := range []string{"a", "b"} {
		r.must(user, "POST", "/api/v1/sandbox", `{"name":"`+name+`"}`)
	}
	r.do(user, "POST", "/api/v1/sandbox", `{"name":"c"}`) // exceeds the limit
	r.must(user, "POST", "/api/v1/sandbox/a/pause", "")
	r.do(user, "GET", "/sandbox/a/", "") // wakes it
	exported := r.do(r.admin, "GET", "/metrics", "").body
	labels := labelsOf(exported)
	if len(labels) < 14 {
		t.Fatalf("got metrics %v of %s, want the metrics of a hub", labels, exported)
	}
	shown := checkExpressions(t, expressions(t), labels)
	for name := range labels {
		if name = strings.TrimSuffix(name, "_bucket"); strings.HasPrefix(name, "cove_") && !shown[name] &&
			!strings.HasSuffix(name, "_sum") && !strings.HasSuffix(name, "_count") {
			t.Errorf("got metric %s on no panel, want every metric on a panel", name)
		}
	}
	for _, want := range []string{`cove_creates_total{result="created"}`, `cove_sandboxes{state="failed"}`,
		`cove_quota_refusals_total{limit="sandboxes"}`, `cove_wakes_total{result="`} {
		if !strings.Contains(exported, want) {
			t.Errorf("got %s, want %s, which the rules rely on", exported, want)
		}
	}
}

// labelsOf returns the labels of each metric in an export.
func labelsOf(exported string) map[string][]string {
	labels := map[string][]string{}
	for line := range strings.Lines(exported) {
		if words := strings.Fields(line); len(words) > 3 && words[1] == "TYPE" {
			labels[words[2]] = []string{"instance", "job"}
			if words[3] == "histogram" {
				labels[words[2]+"_bucket"], labels[words[2]] = []string{"instance", "job"}, nil
			}
			continue
		}
		if name, rest, ok := strings.Cut(line, "{"); ok && !strings.HasPrefix(line, "#") {
			for _, l := range regexp.MustCompile(`(\w+)="`).FindAllStringSubmatch(rest, -1) {
				labels[name] = append(labels[name], l[1])
			}
		}
	}
	return labels
}

// expressions returns the queries of the dashboard and of the alert rules, by the place where they are used.
func expressions(t *testing.T) map[string]string {
	t.Helper()
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	readInto(t, "../../../deploy/monitoring/dashboard.json", json.Unmarshal, &dashboard)
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr string
				Annotations map[string]string
			}
		}
	}
	readInto(t, "../../../deploy/monitoring/alerts.yaml", yaml.Unmarshal, &rules)
	uses := map[string]string{}
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			uses["panel "+p.Title+" "+target.LegendFormat] = target.Expr
		}
	}
	for _, g := range rules.Groups {
		for _, a := range g.Rules {
			uses["alert "+a.Alert] = a.Expr
			if a.Annotations["summary"] == "" || a.Annotations["description"] == "" {
				t.Errorf("alert %s: got annotations %v, want a summary and the action to take", a.Alert, a.Annotations)
			}
		}
	}
	if len(uses) < 20 {
		t.Errorf("got %d expressions, want at least 20", len(uses))
	}
	return uses
}

// checkExpressions compares queries with the metrics that a hub exports, and returns the metrics that
// they use.
func checkExpressions(t *testing.T, uses map[string]string, labels map[string][]string) map[string]bool {
	t.Helper()
	metric, label := regexp.MustCompile(`\b(cove_\w+)(?:\{([^}]*)\})?`), regexp.MustCompile(`(\w+)\s*(?:=~|=)\s*"`)
	by := regexp.MustCompile(`\bby \(([^)]*)\)`)
	shown := map[string]bool{}
	for where, expr := range uses {
		if strings.Count(expr, "(") != strings.Count(expr, ")") {
			t.Errorf("%s: got %q, want balanced parentheses", where, expr)
		}
		for _, m := range metric.FindAllStringSubmatch(expr, -1) {
			has, ok := labels[m[1]]
			if !ok || has == nil {
				t.Errorf("%s: got metric %q, which the hub does not export", where, m[1])
				continue
			}
			shown[strings.TrimSuffix(m[1], "_bucket")] = true
			var used []string
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				used = append(used, l[1])
			}
			for _, b := range by.FindAllStringSubmatch(expr, -1) {
				used = append(used, strings.Split(strings.ReplaceAll(b[1], " ", ""), ",")...)
			}
			for _, l := range used {
				// An event that did not occur here has no series, so its labels are unknown.
				if len(has) > 2 && !slices.Contains(has, l) {
					t.Errorf("%s: got label %q of %s, want one of %v", where, l, m[1], has)
				}
			}
		}
	}
	return shown
}

func readInto(t *testing.T, path string, unmarshal func([]byte, any) error, v any) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err == nil {
		err = unmarshal(b, v)
	}
	if err != nil {
		t.Fatal(err)
	}
}
