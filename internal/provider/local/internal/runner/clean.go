package runner

import (
	"context"
	"slices"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

// cleaner retries failed removals: those of Adopt, and failed deletions. Only the watcher uses it.
type cleaner struct {
	runner *Runner
	failed []*box // by Adopt
}

func (c *cleaner) retry(ctx context.Context) {
	c.failed = slices.DeleteFunc(c.failed, func(b *box) bool { return ctx.Err() == nil && c.runner.discard(ctx, b) == nil })
	for _, id := range c.runner.table.IDs(sandbox.Deleting) {
		c.retryDelete(ctx, id)
	}
}

// retryDelete deletes a sandbox unless another call is using it.
func (c *cleaner) retryDelete(ctx context.Context, id string) {
	ctx, cancel := context.WithTimeout(ctx, time.Millisecond)
	defer cancel()
	row, err := c.runner.table.Acquire(ctx, id)
	if err != nil {
		return
	}
	defer row.Release()
	log := c.runner.cfg.Log
	if err := c.runner.destroy(row); err != nil {
		log.Warn("cannot remove a sandbox; retrying later", "sandbox", id, "error", err)
		return
	}
	log.Info("removed a sandbox whose deletion had failed", "sandbox", id)
}
