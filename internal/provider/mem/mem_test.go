package mem_test

import (
	"strings"
	"testing"

	"github.com/cove-sandbox/cove/internal/dev/testenv"
	"github.com/cove-sandbox/cove/internal/provider/mem"
	"github.com/cove-sandbox/cove/internal/provider/providertest"
	"github.com/cove-sandbox/cove/internal/provider/providertest/payload"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

func TestMain(m *testing.M) { testenv.Main(m) }

func run(sb sandbox.Sandbox, disk *mem.Disk, exit func(int)) (mem.Guest, error) {
	if sb.Spec.Env[payload.Env] == payload.Exit {
		exit(payload.ExitCode)
	}
	return payload.New(payload.Config{
		Read: disk.Read, Write: disk.Write, Remove: disk.Remove, Exit: exit,
		Getenv: func(k string) string { return sb.Spec.Env[k] },
	}), nil
}

func TestProvider(t *testing.T) {
	providertest.Run(t, func(t *testing.T) providertest.Harness {
		store := &mem.Store{}
		open := func() (*mem.Provider, error) { return mem.Open(mem.Config{Store: store, Run: run}) }
		return providertest.Harness{
			Open: func() (sandbox.Provider, error) { return open() },
			Spec: func() sandbox.Spec { return sandbox.Spec{} },
			Left: store.Left,
			CreateAndDie: func(t *testing.T, specs []sandbox.Spec) {
				p, err := open()
				if err != nil {
					t.Fatal(err)
				}
				defer p.Abandon()
				for _, spec := range specs {
					sb, err := p.Create(t.Context(), spec)
					if err == nil && strings.HasPrefix(spec.Name, "paused") {
						err = p.Pause(t.Context(), sb.ID)
					}
					if err == nil && strings.HasPrefix(spec.Name, "stopped") {
						err = p.Stop(t.Context(), sb.ID)
					}
					if err != nil {
						t.Fatal(err)
					}
				}
			},
			DieCreating: func(t *testing.T, spec sandbox.Spec) {
				p, err := open()
				if err != nil {
					t.Fatal(err)
				}
				before := len(store.Left())
				ended := make(chan struct{})
				go func() { defer close(ended); p.Create(t.Context(), spec) }()
				testenv.Poll(t, "the create has begun", func() bool { return len(store.Left()) > before })
				p.Abandon()
				<-ended
			},
		}
	})
}
