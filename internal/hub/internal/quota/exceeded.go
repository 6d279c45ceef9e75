package quota

import (
	"fmt"
	"time"
)

// What can be exceeded.
type What string

// The limits by name.
const (
	Sandboxes What = "sandboxes"
	CPU       What = "cpu"
	Memory    What = "memory"
	Disk      What = "disk"
	Rate      What = "create rate"
	Calls     What = "concurrent calls"
	Guests    What = "concurrent calls of guests"
	Waiting   What = "waiting creates"
	// RequestMemory is the memory of requests in the hub.
	RequestMemory What = "request memory"
)

// Delays for a retry if the time is unknown, because quota is released when something ends.
const (
	retryRoom  = 10 * time.Second
	retryCall  = time.Second
	retryQueue = 2 * time.Second
)

// Exceeded is the error of a request that would exceed a limit.
type Exceeded struct {
	Tenant             string
	What               What
	Limit, Used, Asked int64   // CPU in thousandths, Memory and Disk in bytes
	PerMinute          float64 // the limit, if What is Rate
	RetryAfter         time.Duration
}

// Error says what was exceeded and what to do.
func (e *Exceeded) Error() string {
	switch e.What {
	case Rate:
		return fmt.Sprintf("create rate exceeded: the limit is %g sandboxes per minute; retry in %v", e.PerMinute, e.RetryAfter)
	case Calls:
		return fmt.Sprintf("concurrent calls exceeded: %d of %d in use; retry when a call has ended", e.Used, e.Limit)
	case Guests:
		return fmt.Sprintf("concurrent calls by links exceeded: %d of %d in use; retry when a call has ended", e.Used, e.Limit)
	case Waiting:
		return fmt.Sprintf("waiting creates exceeded: %d of %d are waiting; retry when some have ended", e.Used, e.Limit)
	case RequestMemory:
		if e.Tenant == "" {
			return "the hub has no memory left for request bodies; retry in a moment"
		}
		return fmt.Sprintf("request memory exceeded: your requests use %s of %s; retry when a request has "+
			"ended, or send smaller requests", e.format(e.Used), e.format(e.Limit))
	case Sandboxes:
		return fmt.Sprintf("sandboxes exceeded: %d of %d in use and %d more requested; delete a sandbox, or ask "+
			"the operator for a higher limit", e.Used, e.Limit, e.Asked)
	}
	delete := "delete a sandbox"
	if e.What == Disk {
		delete = "delete a sandbox, snapshot, volume, image or activity record"
	}
	return fmt.Sprintf("%s exceeded: %s of %s in use and %s more requested; request less, %s, or ask the operator for a higher limit",
		e.What, e.format(e.Used), e.format(e.Limit), e.format(e.Asked), delete)
}

// format formats a number in the notation of requests.
func (e *Exceeded) format(n int64) string {
	if e.What == CPU {
		return fmt.Sprintf("%dm", n)
	}
	for _, u := range []struct {
		size int64
		name string
	}{{1 << 30, "Gi"}, {1 << 20, "Mi"}, {1 << 10, "Ki"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d%s", n/u.size, u.name)
		}
	}
	return fmt.Sprint(n)
}
