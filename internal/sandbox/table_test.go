package sandbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func add(t *testing.T, table *Table[int], id, name string) (context.Context, *Row[int]) {
	t.Helper()
	ctx, row, err := table.Add(t.Context(), Sandbox{ID: id, Spec: Spec{Name: name}, State: Creating, Created: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	return ctx, row
}

func TestTableTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[int]()
		_, row := add(t, table, "1", "a")
		if _, ok := table.TryAcquire("1"); ok {
			t.Error("acquired what is being created")
		}
		if _, err := table.AcquireIdle(t.Context(), "1"); !errors.Is(err, ErrState) {
			t.Errorf("got %v, want %v", err, ErrState)
		}
		row.Change(func(sb *Sandbox) { sb.State = Running })
		if _, ok := table.TryAcquire("1"); ok {
			t.Error("acquired what another has")
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := table.AcquireIdle(short, "1"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		// Callers that wait while it is removed get ErrDeleted.
		waited := make(chan error)
		go func() { _, err := table.Acquire(t.Context(), "1"); waited <- err }()
		synctest.Wait()
		row.Remove()
		row.Remove()
		row.Release()
		if err := <-waited; !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v, want %v", err, ErrNotFound)
		}
		table.Close(ErrClosed)
	})
}

func TestTableDeleteEndsCreate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[int]()
		ctx, row := add(t, table, "1", "a")
		doomed := make(chan *Row[int])
		go func() { r, _ := table.AcquireForDelete(context.Background(), "1"); doomed <- r }()
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), ErrDeleted) {
			t.Errorf("got %v, want %v", context.Cause(ctx), ErrDeleted)
		}
		row.Remove()
		row.Release()
		if r := <-doomed; r != nil {
			t.Error("a removed row was returned")
		}
		if _, err := table.AcquireForDelete(t.Context(), "1"); !errors.Is(err, ErrNotFound) {
			t.Errorf("got %v, want %v", err, ErrNotFound)
		}
		add(t, table, "2", "a") // the name is free
	})
}

func TestTableUpdateIsUndone(t *testing.T) {
	table := NewTable[int]()
	_, row := add(t, table, "1", "a")
	row.Change(func(sb *Sandbox) { sb.State = Running })
	full := errors.New("disk full")
	_, err := row.Update(func(s *Spec) error { s.Name = "b"; return nil }, func(Sandbox) error { return full })
	if !errors.Is(err, full) || row.Sandbox().Spec.Name != "a" {
		t.Errorf("got %v, name %q, want %v", err, row.Sandbox().Spec.Name, full)
	}
	_, other := add(t, table, "2", "b") // the name was let go
	if _, err := row.Update(func(s *Spec) error { s.Name = "b"; return nil }, nil); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want %v", err, ErrConflict)
	}
	if _, _, err := table.Add(t.Context(), Sandbox{ID: "3", Spec: Spec{Name: "a"}}); !errors.Is(err, ErrConflict) {
		t.Errorf("got %v, want %v", err, ErrConflict)
	}
	row.Release()
	other.Release()
}

func TestTableClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		table := NewTable[int]()
		ctx, done, err := table.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		background := make(chan struct{})
		table.Go(func(ctx context.Context) { <-ctx.Done(); close(background) })
		closed := make(chan struct{})
		go func() { table.Close(ErrClosed); close(closed) }()
		<-ctx.Done()
		<-background
		if !errors.Is(context.Cause(ctx), ErrClosed) {
			t.Errorf("got %v, want %v", context.Cause(ctx), ErrClosed)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed with a call in progress")
		default:
		}
		done()
		<-closed
		table.Go(func(context.Context) { t.Error("ran after close") })
		if _, _, err := table.Begin(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("got %v, want %v", err, ErrClosed)
		}
	})
}
