package quota

// Buffer is the memory that one request takes in this process. It grows with what
// was read, so that an unfinished request takes no more than it has sent.
type Buffer struct {
	k      *Keeper
	tenant string
	size   int64
	freed  bool
}

// Buffer returns an empty buffer of a tenant. It must be freed.
func (k *Keeper) Buffer(tenant string) *Buffer { return &Buffer{k: k, tenant: tenant} }

// Grow takes n more bytes. It fails with *Exceeded if the tenant, or all together, hold
// too much; then nothing is taken.
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

// Free gives back what the buffer took. It is idempotent.
func (b *Buffer) Free() {
	b.k.mu.Lock()
	defer b.k.mu.Unlock()
	if !b.freed && b.size > 0 {
		b.k.tenants[b.tenant].buffered -= b.size
		b.k.buffered -= b.size
	}
	b.freed = true
}
