// Fleet runs the same task concurrently in several forks of one prepared sandbox and keeps the best
// fork as a snapshot.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/client"
)

func main() {
	url := flag.String("hub", "http://127.0.0.1:10000", "URL of the hub")
	key := flag.String("key", "", "API key, if the hub needs one")
	count := flag.Int("count", 20, "number of attempts")
	flag.Parse()
	hub, err := client.New(client.Config{URL: *url, Key: *key})
	if err != nil {
		log.Fatal(err)
	}
	defer hub.Close()
	if err := run(context.Background(), hub, *count); err != nil {
		log.Fatal(err)
	}
}

// attempt is the result of one fork.
type attempt struct {
	sandbox string
	score   int
	err     error
}

func run(ctx context.Context, hub *client.Client, count int) error {
	base, err := hub.Create(ctx, client.CreateOptions{})
	if err != nil {
		return err
	}
	defer hub.Delete(ctx, base.ID)
	// Prepare everything that all attempts need once.
	if _, err := exec(ctx, hub, base.ID, "seq 1 1000 > data"); err != nil {
		return err
	}
	forks, err := hub.Fork(ctx, base.ID, count)
	if err != nil {
		return err
	}
	attempts := make([]attempt, len(forks))
	var wait sync.WaitGroup
	for i, fork := range forks {
		defer hub.Delete(ctx, fork.ID)
		wait.Go(func() { attempts[i] = try(ctx, hub, fork.ID, i) })
	}
	wait.Wait()
	best := 0
	for i, a := range attempts {
		if a.err != nil {
			return a.err
		}
		fmt.Printf("variant %d: score %d\n", i, a.score)
		if a.score > attempts[best].score {
			best = i
		}
	}
	result, err := exec(ctx, hub, attempts[best].sandbox, "cat result")
	if err != nil {
		return err
	}
	fmt.Printf("the best of %d is variant %d with the result %s\n", len(attempts), best, strings.TrimSpace(result))
	// A sandbox can be created from it later, after these sandboxes are deleted.
	kept, err := hub.Snapshot(ctx, attempts[best].sandbox, "best-"+attempts[best].sandbox)
	if err != nil {
		return err
	}
	fmt.Printf("kept as the snapshot %s: cove create --from-snapshot %[1]s\n", kept.Name)
	return nil
}

// try runs one variant and measures its result.
func try(ctx context.Context, hub *client.Client, sandbox string, variant int) attempt {
	out, err := exec(ctx, hub, sandbox, askModel(variant)+" > result; cat result")
	if err != nil {
		return attempt{err: err}
	}
	score, err := strconv.Atoi(strings.TrimSpace(out))
	return attempt{sandbox, score, err}
}

// askModel replaces a model, which returns a different answer for each attempt: the largest sum of
// some lines of the data.
func askModel(variant int) string {
	return fmt.Sprintf("tail -n +%d data | head -n 100 | awk '{ sum += $1 } END { print sum }'", variant*45+1)
}

func exec(ctx context.Context, hub *client.Client, sandbox, command string) (string, error) {
	var out, errs bytes.Buffer
	res, err := hub.Guest(sandbox).Exec(ctx, command, client.ExecOptions{Stdout: &out, Stderr: &errs})
	if err == nil && res.ExitCode != 0 {
		err = fmt.Errorf("%s: exit code %d: %s", command, res.ExitCode, &errs)
	}
	return out.String(), err
}
