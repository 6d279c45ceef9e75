package quota

// Buffer is the memory of one request in this process. It grows with the data that was read, so that an
// unfinished request counts only what it has sent.
type Buffer struct {
	k      *Keeper
	tenant string
	size   int64
	freed  bool
}

// Buffer returns an empty buffer of a tenant. It must be released with Free.
func (k *Keeper) Buffer(tenant string) *Buffer { return &Buffer{k: k, tenant: tenant} }

// Grow reserves n more bytes. It fails with *Exceeded, and reserves nothing, if a limit of the tenant or of
// the hub would be exceeded.
func (b *Buffer) Grow(n int) error {
	limit := b.k.cfg.Limits(b.tenant).RequestMemory
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	t := b.k.account(b.tenant)
	more := int64(n)
	switch {
	case b.freed:
		return nil
	case limit != 0 && t.buffered+more > max(0, limit):
		return &Exceeded{Tenant: b.tenant, What: RequestMemory, Limit: max(0, limit), Used: t.buffered, Asked: more, RetryAfter: retryCall}
	case b.k.buffered+more > b.k.cfg.RequestMemory:
		return &Exceeded{What: RequestMemory, Limit: b.k.cfg.RequestMemory, Used: b.k.buffered, Asked: more, RetryAfter: retryCall}
	}
	b.size += more
	t.buffered += more
	b.k.buffered += more
	return nil
}

// Free releases the memory of the buffer. It is idempotent.
func (b *Buffer) Free() {
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	if !b.freed && b.size > 0 {
		b.k.tenants[b.tenant].buffered -= b.size
		b.k.buffered -= b.size
	}
	b.freed = true
}
