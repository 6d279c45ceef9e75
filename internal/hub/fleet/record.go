package fleet

import (
	"context"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"github.com/cove-sandbox/cove/internal/sandbox"
)

const (
	recordTime  = 10 * time.Second // for the record of a sandbox, sufficient on a busy machine
	maxPictures = 40               // of one record, the latest
)

// SaveRecord stores the activity record of a running sandbox before it is paused, stopped or deleted. If
// the sandbox does not respond, the record is lost.
func (f *Fleet) SaveRecord(ctx context.Context, sb sandbox.Sandbox) {
	if f.Records == nil || sb.State != sandbox.Running || !IsNative(sb) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, recordTime)
	defer cancel()
	for _, limit := range []int{1000, 200, 40} { // a response that is too long fails
		var reply struct {
			Entries []json.RawMessage `json:"entries"`
		}
		if f.box(sb).query(ctx, "/v1/sandbox/activity?limit="+strconv.Itoa(limit), &reply) {
			f.Records.Save(sb, reply.Entries, pictures(ctx, f, sb, reply.Entries))
			return
		}
	}
}

// pictures returns the latest pictures of the entries that it can read before ctx ends.
func pictures(ctx context.Context, f *Fleet, sb sandbox.Sandbox, entries []json.RawMessage) map[int64][]byte {
	out := map[int64][]byte{}
	for _, raw := range slices.Backward(entries) {
		var e struct {
			ID      int64 `json:"id"`
			Picture bool  `json:"picture"`
		}
		if json.Unmarshal(raw, &e) != nil || !e.Picture {
			continue
		}
		if b, ok := f.box(sb).fetch(ctx, "/v1/sandbox/activity/"+strconv.FormatInt(e.ID, 10)+"/picture", maxPicture); ok {
			out[e.ID] = b
		}
		if len(out) == maxPictures || ctx.Err() != nil {
			break
		}
	}
	return out
}
