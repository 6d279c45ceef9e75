package observe

import (
	"fmt"
	"html"
	"math"
	"strings"
	"time"
)

const (
	plotWidth  = 760
	plotHeight = 160
	plotPoints = 1500 // more samples are thinned out
)

const pageStyle = `body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}
body{color:#222;background:#fff}
svg{width:100%;height:auto;background:#f7f7f9}polyline{fill:none;stroke:#2563eb;stroke-width:1.5}text{font-size:11px;fill:#666}
table{border-collapse:collapse;width:100%}td,th{border-bottom:1px solid #ddd;padding:.25rem .5rem;text-align:left}
td.n,th.n{text-align:right}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}svg{background:#222}td,th{border-color:#444}}`

// page formats a report as an HTML page that loads no other resources.
func page(rep Report, samples []Sample, happened []Event) []byte {
	var b strings.Builder
	first, last := samples[0], samples[len(samples)-1]
	title := "Observation report " + rep.ReportID
	fmt.Fprintf(&b, "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "+
		"content=\"width=device-width\"><title>%s</title><style>%s</style></head><body>\n<h1>%s</h1>\n",
		html.EscapeString(title), pageStyle, html.EscapeString(title))
	fmt.Fprintf(&b, "<p>%d samples from %s to %s. Reason: %s.</p>\n", len(samples), first.Time.Format(time.RFC3339),
		last.Time.Format(time.RFC3339), html.EscapeString(rep.Reason))
	plot(&b, "CPU (percent of one core)", samples, func(s *Sample) (float64, bool) { return deref(s.Cgroup.CPUPercent) })
	plot(&b, "Memory (MiB)", samples, func(s *Sample) (float64, bool) { return float64(s.Cgroup.Memory) / (1 << 20), true })
	for i, d := range last.Disk {
		plot(&b, "Disk "+d.Path+" (percent)", samples, func(s *Sample) (float64, bool) {
			if i >= len(s.Disk) {
				return 0, false
			}
			return s.Disk[i].Percent, true
		})
	}
	b.WriteString("<h2>Events</h2>\n")
	if len(happened) == 0 {
		b.WriteString("<p>None.</p>\n")
	} else {
		b.WriteString("<table><tr><th>Time</th><th>Type</th><th>Message</th></tr>\n")
		for _, e := range happened {
			fmt.Fprintf(&b, "<tr><td>%s</td><td>%s</td><td>%s</td></tr>\n", e.Time.Format(time.RFC3339),
				html.EscapeString(e.Type), html.EscapeString(e.Message))
		}
		b.WriteString("</table>\n")
	}
	processTable(&b, last.Processes)
	b.WriteString("</body></html>\n")
	return []byte(b.String())
}

func deref(p *float64) (float64, bool) {
	if p == nil {
		return 0, false
	}
	return *p, true
}

func processTable(b *strings.Builder, list []Process) {
	if len(list) == 0 {
		return
	}
	b.WriteString("<h2>Processes in the last sample</h2>\n<table><tr><th " +
		"class=\"n\">PID</th><th>User</th><th>Name</th><th class=\"n\">Memory (MiB)</th><th class=\"n\">CPU (%)</th></tr>\n")
	for _, p := range list {
		cpu := ""
		if v, ok := deref(p.CPUPercent); ok {
			cpu = fmt.Sprintf("%.1f", v)
		}
		fmt.Fprintf(b, "<tr><td class=\"n\">%d</td><td>%s</td><td>%s</td><td class=\"n\">%.1f</td><td "+
			"class=\"n\">%s</td></tr>\n", p.PID, html.EscapeString(p.User), html.EscapeString(p.Comm), p.RSSMiB, cpu)
	}
	b.WriteString("</table>\n")
}

// plot draws one figure over time.
func plot(b *strings.Builder, title string, samples []Sample, value func(*Sample) (float64, bool)) {
	start, span := samples[0].Time, samples[len(samples)-1].Time.Sub(samples[0].Time).Seconds()
	step := max(1, len(samples)/plotPoints)
	var points []struct{ x, y float64 }
	top := 0.0
	for i := 0; i < len(samples); i += step {
		y, ok := value(&samples[i])
		if !ok || math.IsNaN(y) || math.IsInf(y, 0) {
			continue
		}
		x := 0.0
		if span > 0 {
			x = samples[i].Time.Sub(start).Seconds() / span
		}
		points = append(points, struct{ x, y float64 }{x, y})
		top = max(top, y)
	}
	if top == 0 {
		top = 1
	}
	fmt.Fprintf(b, "<h2>%s</h2>\n<svg viewBox=\"0 0 %d %d\" role=\"img\"><polyline points=\"",
		html.EscapeString(title), plotWidth, plotHeight+20)
	for _, p := range points {
		fmt.Fprintf(b, "%.1f,%.1f ", p.x*plotWidth, 10+(1-p.y/top)*plotHeight)
	}
	fmt.Fprintf(b, "\"/><text x=\"4\" y=\"14\">%.1f</text><text x=\"4\" y=\"%d\">0</text></svg>\n", top, plotHeight+16)
}
