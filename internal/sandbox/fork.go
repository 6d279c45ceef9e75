package sandbox

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// forksAtOnce is the maximum number of forks that are created concurrently.
const forksAtOnce = 8

// CheckForks returns ErrInvalid for an invalid number of forks.
func CheckForks(specs []Spec) error {
	if len(specs) < 1 || len(specs) > MaxForks {
		return fmt.Errorf("%w: %d forks; request 1 to %d", ErrInvalid, len(specs), MaxForks)
	}
	return nil
}

// CreateForks creates a sandbox for each spec. After an error it calls remove with the IDs of the created
// sandboxes, so that none is left.
func CreateForks(ctx context.Context, specs []Spec, create func(context.Context, Spec) (Sandbox, error),
	remove func(context.Context, string) error) ([]Sandbox, error) {
	life, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var work sync.WaitGroup
	next := make(chan int)
	forks, done := make([]Sandbox, len(specs)), make([]bool, len(specs))
	for range min(forksAtOnce, len(specs)) {
		work.Go(func() {
			for i := range next {
				sb, err := create(life, specs[i])
				if err != nil {
					stop(err)
					continue
				}
				forks[i], done[i] = sb, true
			}
		})
	}
	for i := range specs {
		if life.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	work.Wait()
	err := context.Cause(life)
	if err == nil {
		return forks, nil
	}
	for i, made := range done {
		if !made {
			continue
		}
		if failed := remove(context.WithoutCancel(ctx), forks[i].ID); failed != nil && !errors.Is(failed, ErrNotFound) {
			err = errors.Join(err, failed)
		}
	}
	return nil, err
}
