package watch

import "sync"

// Cache holds the last known state of the Pods of the hub.
type Cache struct {
	mu       sync.Mutex
	added    int // Pods added by Add
	pods     map[string]cachedPod
	watchers map[string][]chan struct{}
}

type cachedPod struct {
	Pod
	// added is the value of Cache.added if the hub has created the Pod and the watch has not reported it yet.
	added int
	// answered says that its first process has answered, which can be known before the cluster reports it.
	answered bool
}

// Add adds a Pod that the hub has created, unless the watch has reported it already.
func (c *Cache) Add(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.pods[p.Metadata.Name]; !ok {
		c.added++
		c.store(p, c.added)
	}
}

// Put stores a state that the watch has reported.
func (c *Cache) Put(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(p, 0)
}

// Refresh stores the response to a query.
func (c *Cache) Refresh(p Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.store(p, c.pods[p.Metadata.Name].added)
}

func (c *Cache) store(p Pod, added int) {
	if c.pods == nil {
		c.pods = map[string]cachedPod{}
	}
	p.Metadata.Annotations, p.Metadata.OwnerReferences = nil, nil // they are large
	c.pods[p.Metadata.Name] = cachedPod{p, added, c.pods[p.Metadata.Name].answered}
	c.notify(p.Metadata.Name)
}

// Drop removes a Pod that does not exist.
func (c *Cache) Drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, name)
	c.notify(name)
}

// Moment returns the argument for ReplaceAll. Call it before the Pods are listed.
func (c *Cache) Moment() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.added
}

// ReplaceAll stores the list of all Pods of a namespace. Pods added after the moment may be missing in it.
func (c *Cache) ReplaceAll(namespace string, all []Pod, moment int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed := map[string]bool{}
	for _, p := range all {
		listed[p.Metadata.Name] = true
		c.store(p, 0)
	}
	for name, known := range c.pods {
		if known.Metadata.Namespace == namespace && !listed[name] && known.added <= moment {
			delete(c.pods, name)
			c.notify(name)
		}
	}
}

// Get returns a Pod.
func (c *Cache) Get(name string) (Pod, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return known.Pod, ok
}

// SetAnswered notes that the first process of a Pod has answered.
func (c *Cache) SetAnswered(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if known, ok := c.pods[name]; ok {
		known.answered = true
		c.pods[name] = known
	}
}

// Unreported reports whether the first process of a Pod has answered before the cluster reports that it runs.
func (c *Cache) Unreported(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return ok && known.answered && !known.hasRun()
}

// Idle reports whether a Pod has not run any process yet.
func (c *Cache) Idle(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.pods[name]
	return ok && !known.answered && !known.hasRun()
}

// Missing reports whether a Pod does not exist.
func (c *Cache) Missing(name string) bool {
	_, ok := c.Get(name)
	return !ok
}

// Subscribe returns a channel that receives a value after each change of a Pod, until cancel is called.
func (c *Cache) Subscribe(name string) (changed <-chan struct{}, cancel func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watchers == nil {
		c.watchers = map[string][]chan struct{}{}
	}
	ch := make(chan struct{}, 1)
	c.watchers[name] = append(c.watchers[name], ch)
	return ch, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, w := range c.watchers[name] {
			if w == ch {
				c.watchers[name] = append(c.watchers[name][:i:i], c.watchers[name][i+1:]...)
			}
		}
		if len(c.watchers[name]) == 0 {
			delete(c.watchers, name)
		}
	}
}

func (c *Cache) notify(name string) {
	for _, ch := range c.watchers[name] {
		select {
		case ch <- struct{}{}:
		default: // a notification is pending
		}
	}
}
