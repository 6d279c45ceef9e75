package envd

import (
	"net/http"
	"strings"
	"time"
)

// Usage is the resource usage of the sandbox.
type Usage struct {
	CPUs      int
	CPUPct    float64 // percentage of all CPUs
	MemUsed   int64
	MemTotal  int64
	MemCache  int64
	DiskUsed  int64
	DiskTotal int64
}

// metricsOut is the usage in the format of clients.
type metricsOut struct {
	Time      int64   `json:"ts"`
	CPUs      int     `json:"cpu_count"`
	CPUPct    float64 `json:"cpu_used_pct"`
	MemTotal  int64   `json:"mem_total"`
	MemUsed   int64   `json:"mem_used"`
	MemCache  int64   `json:"mem_cache"`
	DiskUsed  int64   `json:"disk_used"`
	DiskTotal int64   `json:"disk_total"`
}

func (s *Service) metrics(w http.ResponseWriter, _ *http.Request) {
	u := s.Usage()
	writeJSON(w, http.StatusOK, metricsOut{time.Now().Unix(), u.CPUs, u.CPUPct, u.MemTotal, u.MemUsed, u.MemCache, u.DiskUsed, u.DiskTotal})
}

func (s *Service) variables(w http.ResponseWriter, _ *http.Request) {
	all := map[string]string{}
	for _, pair := range s.Runner.Environ() {
		if name, value, ok := strings.Cut(pair, "="); ok {
			all[name] = value
		}
	}
	writeJSON(w, http.StatusOK, all)
}
