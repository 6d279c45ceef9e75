package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
)

// TestCreateForks: the forks come in the order of their specs.
func TestCreateForks(t *testing.T) {
	specs := make([]Spec, 3*forksAtOnce)
	for i := range specs {
		specs[i].Name = fmt.Sprint(i)
	}
	forks, err := CreateForks(t.Context(), specs, func(_ context.Context, spec Spec) (Sandbox, error) {
		return Sandbox{ID: "sb-" + spec.Name, Spec: spec}, nil
	}, func(_ context.Context, id string) error {
		t.Errorf("removed %s; nothing had failed", id)
		return nil
	})
	if err != nil || len(forks) != len(specs) {
		t.Fatalf("got %d forks, error %v; want %d", len(forks), err, len(specs))
	}
	for i, fork := range forks {
		if want := fmt.Sprintf("sb-%d", i); fork.ID != want {
			t.Errorf("fork %d is %s, want %s", i, fork.ID, want)
		}
	}
}

// TestCreateForksFails: after an error all other forks are removed, even if another caller has removed one.
func TestCreateForksFails(t *testing.T) {
	broken, stuck := errors.New("the disk is full"), errors.New("it cannot be removed")
	specs := []Spec{{Name: "a"}, {Name: "gone"}, {Name: "stuck"}, {Name: "broken"}}
	var mu sync.Mutex
	var removed []string
	created := make(chan struct{}, len(specs))
	forks, err := CreateForks(t.Context(), specs, func(_ context.Context, spec Spec) (Sandbox, error) {
		if spec.Name == "broken" {
			for range len(specs) - 1 {
				<-created
			}
			return Sandbox{}, broken
		}
		created <- struct{}{}
		return Sandbox{ID: spec.Name}, nil
	}, func(ctx context.Context, id string) error {
		mu.Lock()
		defer mu.Unlock()
		removed = append(removed, id)
		if ctx.Err() != nil {
			t.Errorf("removed %s in a context that is over", id)
		}
		switch id {
		case "gone":
			return fmt.Errorf("%w: %s", ErrNotFound, id)
		case "stuck":
			return stuck
		}
		return nil
	})
	if forks != nil || !errors.Is(err, broken) || !errors.Is(err, stuck) || errors.Is(err, ErrNotFound) {
		t.Errorf("got forks %v, error %v; want none, and both errors %q and %q", forks, err, broken, stuck)
	}
	slices.Sort(removed)
	if want := []string{"a", "gone", "stuck"}; !slices.Equal(removed, want) {
		t.Errorf("removed %q, want %q", removed, want)
	}
}
