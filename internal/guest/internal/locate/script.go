// Package locate finds elements of pages and acts on them with real input events, after the element is visible, stable,
// enabled, in view and not covered.
//
// It owns the engine, a script that runs in an isolated world of each frame, where pages cannot see or change it.
package locate

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/guest/internal/cdp"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

//go:embed script/*.js
var scripts embed.FS

// Boot is the script that runs in every document before the page's own.
var Boot = sync.OnceValue(func() string { return readScripts("boot") })

var engine = sync.OnceValue(func() string {
	return "if (!globalThis.cove) (() => {\n'use strict';\n" + readScripts("dom", "aria", "select", "act", "read", "snapshot") + "})();"
})

func readScripts(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		text, err := scripts.ReadFile("script/" + name + ".js")
		if err != nil {
			panic(err) // it is embedded
		}
		b.Write(text)
		b.WriteByte('\n')
	}
	return b.String()
}

type evalParams struct {
	Expression   string `json:"expression"`
	ContextID    int64  `json:"contextId,omitempty"`
	AwaitPromise bool   `json:"awaitPromise"`
	ByValue      bool   `json:"returnByValue"`
}

// EvalResult is what the browser returns for a script.
type EvalResult struct {
	Result    Remote `json:"result"`
	Exception *struct {
		Text      string `json:"text"`
		Exception Remote `json:"exception"`
	} `json:"exceptionDetails"`
}

// Remote is a JavaScript value in the page.
type Remote struct {
	Type     string          `json:"type"`
	Subtype  string          `json:"subtype"`
	Class    string          `json:"className"`
	Value    json.RawMessage `json:"value"`
	Unserial string          `json:"unserializableValue"`
	Text     string          `json:"description"`
	ObjectID string          `json:"objectId"`
}

// Run calls a function of the engine in a frame and decodes its result.
func Run(ctx context.Context, f *tab.Frame, result any, name string, args ...any) error {
	r, err := call(ctx, f, true, name, args...)
	if err != nil {
		return err
	}
	if result == nil || r.Value == nil {
		return nil
	}
	return json.Unmarshal(r.Value, result)
}

// handle calls a function of the engine and returns a reference to its result.
func handle(ctx context.Context, f *tab.Frame, name string, args ...any) (Remote, error) {
	return call(ctx, f, false, name, args...)
}

func call(ctx context.Context, f *tab.Frame, byValue bool, name string, args ...any) (Remote, error) {
	var b strings.Builder
	b.WriteString("cove." + name + "(")
	for i, a := range args {
		if i > 0 {
			b.WriteByte(',')
		}
		j, err := json.Marshal(a)
		if err != nil {
			return Remote{}, err
		}
		b.Write(j)
	}
	b.WriteByte(')')
	s, id, loaded, err := f.Context(ctx)
	if err != nil {
		return Remote{}, err
	}
	client := f.Tab().Browser().Client()
	var load *cdp.Pending
	if !loaded {
		if load, err = client.Begin(ctx, s, "Runtime.evaluate", evalParams{Expression: engine(), ContextID: id}); err != nil {
			return Remote{}, err
		}
	}
	p, err := client.Begin(ctx, s, "Runtime.evaluate", evalParams{b.String(), id, true, byValue})
	if err != nil {
		return Remote{}, err
	}
	if load != nil {
		if err := load.Wait(ctx, nil); err != nil {
			_ = p.Wait(ctx, nil)
			return Remote{}, err
		}
		f.SetLoaded(id)
	}
	var r EvalResult
	if err := p.Wait(ctx, &r); err != nil {
		return Remote{}, err
	}
	if r.Exception != nil {
		return Remote{}, fmt.Errorf("%s: %s %s", name, r.Exception.Text, r.Exception.Exception.Text)
	}
	return r.Result, nil
}
