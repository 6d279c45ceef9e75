// Command hub is a hub that the tests can kill, and the init of their sandboxes.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/local"
	"github.com/cove-sandbox/cove/internal/sandbox"
	"github.com/cove-sandbox/cove/internal/system/isolate/initprocess"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "isolate-init" {
		initprocess.Main()
	}
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// run reads a config and specs from its input, creates the sandboxes, says so,
// and waits to be killed, or takes many through their lives until it is.
func run() error {
	var in struct {
		Config local.Config
		Specs  []sandbox.Spec
		Churn  string // lives, disks, save and the ID of a sandbox, or import and an archive
	}
	if err := json.NewDecoder(os.Stdin).Decode(&in); err != nil {
		return err
	}
	ctx := context.Background()
	p, err := local.Open(ctx, in.Config)
	if err != nil {
		return err
	}
	for _, spec := range in.Specs {
		sb, err := p.Create(ctx, spec)
		if err == nil && strings.HasPrefix(spec.Name, "paused") {
			err = p.Pause(ctx, sb.ID)
		}
		if err == nil && strings.HasPrefix(spec.Name, "stopped") {
			err = p.Stop(ctx, sb.ID)
		}
		if err != nil {
			return err
		}
	}
	fmt.Println("created")
	if id, ok := strings.CutPrefix(in.Churn, "save "); ok {
		check(p.PauseToDisk(ctx, id))
	}
	if path, ok := strings.CutPrefix(in.Churn, "import "); ok {
		check(p.ImportImage(sandbox.WithBudget(ctx, stall), path, "imported.invalid/me/half"))
	}
	for i := range 3 {
		switch in.Churn {
		case "lives":
			go churn(ctx, p)
		case "disks":
			go disks(ctx, p, i)
		}
	}
	select {}
}

// stall lets small files pass, and never comes back to one of more than a megabyte.
func stall(bytes int64) error {
	if bytes > 1<<20 {
		select {}
	}
	return nil
}

func churn(ctx context.Context, p *local.Provider) {
	for {
		sb, err := p.Create(ctx, sandbox.Spec{})
		for _, step := range []func(context.Context, string) error{p.Pause, p.Resume, p.Stop, p.Start, p.Delete} {
			check(err)
			err = step(ctx, sb.ID)
		}
		check(err)
	}
}

// disks takes snapshots, each of a disk that holds its name, and goes back to
// and forks what it has.
func disks(ctx context.Context, p *local.Provider, worker int) {
	sb, err := p.Create(ctx, sandbox.Spec{})
	check(err)
	for i := 0; ; i++ {
		name := fmt.Sprintf("w%d-%d", worker, i)
		check(put(ctx, p, sb.ID, name))
		_, err := p.Snapshot(ctx, sb.ID, name)
		check(err)
		check(put(ctx, p, sb.ID, "later"))
		forks, err := p.Fork(ctx, sb.ID, make([]sandbox.Spec, 2))
		check(err)
		check(p.Rollback(ctx, sb.ID, name))
		check(p.Delete(ctx, forks[0].ID))
		if i%3 == 2 {
			check(p.DeleteSnapshot(ctx, "", name))
		}
		check(p.Delete(ctx, sb.ID))
		sb = forks[1]
	}
}

// put writes the file that tells whose disk it is.
func put(ctx context.Context, p *local.Provider, id, text string) error {
	ep, err := p.Endpoint(ctx, id, 0)
	if err != nil {
		return err
	}
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return ep.Dial(ctx) }}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://sandbox/disk/mark", strings.NewReader(text+"\n"))
	if err != nil {
		return err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// check reports that a step is complete, so that a test can kill this hub after a number of
// steps, while other steps are running.
func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println("done")
}
