package app

// publishUsage adds the values of the observation to the metrics.
func (a *Aio) publishUsage() {
	one := func(read func() float64) func() map[string]float64 {
		return func() map[string]float64 { return map[string]float64{"": read()} }
	}
	a.metrics.Gauge("aio_cpu_seconds", "CPU time used by the sandbox.", "", one(func() float64 {
		use, _ := a.observer.Usage()
		return float64(use.CPUUsec) / 1e6
	}))
	a.metrics.Gauge("aio_memory_bytes", "Memory used by the sandbox.", "", one(func() float64 {
		use, _ := a.observer.Usage()
		return float64(use.Memory)
	}))
	a.metrics.Gauge("aio_memory_limit_bytes", "Memory limit of the sandbox; 0 means none.", "", one(func() float64 {
		if use, _ := a.observer.Usage(); use.MemoryMax != nil {
			return float64(*use.MemoryMax)
		}
		return 0
	}))
	a.metrics.Gauge("aio_oom_kills", "Processes killed because the sandbox ran out of memory.", "", one(func() float64 {
		if use, _ := a.observer.Usage(); use.OOMKill != nil {
			return float64(*use.OOMKill)
		}
		return 0
	}))
	a.metrics.Gauge("aio_disk_used_bytes", "Used bytes by file system.", "path", func() map[string]float64 {
		_, disks := a.observer.Usage()
		out := map[string]float64{}
		for _, d := range disks {
			out[d.Path] = float64(d.Used)
		}
		return out
	})
	a.metrics.Gauge("aio_disk_size_bytes", "Size by file system.", "path", func() map[string]float64 {
		_, disks := a.observer.Usage()
		out := map[string]float64{}
		for _, d := range disks {
			out[d.Path] = float64(d.Total)
		}
		return out
	})
}
