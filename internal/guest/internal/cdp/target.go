package cdp

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// Target is something that can be attached to: a page, a frame, a worker.
type Target struct {
	ID               string `json:"targetId"`
	Type             string `json:"type"`
	Title            string `json:"title"`
	URL              string `json:"url"`
	Attached         bool   `json:"attached"`
	OpenerID         string `json:"openerId"`
	BrowserContextID string `json:"browserContextId"`
}

// Targets lists the targets of the browser in its order.
func (c *Client) Targets(ctx context.Context) ([]Target, error) {
	var r struct {
		TargetInfos []Target `json:"targetInfos"`
	}
	err := c.Call(ctx, Browser, "Target.getTargets", nil, &r)
	return r.TargetInfos, err
}

// NewTarget describes a page to open.
type NewTarget struct {
	URL              string `json:"url"`
	NewWindow        bool   `json:"newWindow,omitempty"`
	Background       bool   `json:"background,omitempty"`
	BrowserContextID string `json:"browserContextId,omitempty"`
}

// CreateTarget opens a page and returns its id. The page may still be loading.
func (c *Client) CreateTarget(ctx context.Context, t NewTarget) (string, error) {
	if t.URL == "" {
		t.URL = "about:blank"
	}
	var r struct {
		TargetID string `json:"targetId"`
	}
	err := c.Call(ctx, Browser, "Target.createTarget", t, &r)
	return r.TargetID, err
}

// CloseTarget requests that a target closes. The page may prompt the user first.
func (c *Client) CloseTarget(ctx context.Context, id string) error {
	return c.Call(ctx, Browser, "Target.closeTarget", targetRef{id}, nil)
}

// ActivateTarget brings a page to the front.
func (c *Client) ActivateTarget(ctx context.Context, id string) error {
	return c.Call(ctx, Browser, "Target.activateTarget", targetRef{id}, nil)
}

type targetRef struct {
	TargetID string `json:"targetId"`
}

type attachParams struct {
	targetRef
	Flatten bool `json:"flatten"`
}

// Attach opens a session with a target. Several sessions with one target are independent.
func (c *Client) Attach(ctx context.Context, id string) (SessionID, error) {
	var r struct {
		SessionID SessionID `json:"sessionId"`
	}
	err := c.Call(ctx, Browser, "Target.attachToTarget", attachParams{targetRef{id}, true}, &r)
	return r.SessionID, err
}

// Detach ends a session. Its target keeps running.
func (c *Client) Detach(ctx context.Context, s SessionID) error {
	return c.Call(ctx, Browser, "Target.detachFromTarget", struct {
		SessionID SessionID `json:"sessionId"`
	}{s}, nil)
}

// EvalError is an exception that a script threw.
type EvalError struct {
	// Text is the exception with its stack, as in the browser's console.
	Text         string
	Line, Column int // of the script, from zero
}

func (e *EvalError) Error() string { return "script threw " + e.Text }

// Evaluate runs a JavaScript expression in a page, awaits it if it is a promise, and decodes its JSON value. Values without a JSON
// equivalent, such as NaN or a bigint, are decoded as their JavaScript string; undefined leaves result unchanged.
func (c *Client) Evaluate(ctx context.Context, s SessionID, expression string, result any) error {
	var r struct {
		Result           remoteObject `json:"result"`
		ExceptionDetails *struct {
			Text         string       `json:"text"`
			LineNumber   int          `json:"lineNumber"`
			ColumnNumber int          `json:"columnNumber"`
			Exception    remoteObject `json:"exception"`
		} `json:"exceptionDetails"`
	}
	err := c.Call(ctx, s, "Runtime.evaluate", struct {
		Expression    string `json:"expression"`
		AwaitPromise  bool   `json:"awaitPromise"`
		ReturnByValue bool   `json:"returnByValue"`
		UserGesture   bool   `json:"userGesture"`
	}{expression, true, true, true}, &r)
	if err != nil {
		return err
	}
	if x := r.ExceptionDetails; x != nil {
		text := x.Exception.Description
		if text == "" {
			text = strings.TrimSpace(x.Text + " " + string(x.Exception.json()))
		}
		return &EvalError{Text: text, Line: x.LineNumber, Column: x.ColumnNumber}
	}
	value := r.Result.json()
	if result == nil || value == nil {
		return nil
	}
	if err := json.Unmarshal(value, result); err != nil {
		return fmt.Errorf("decode value of script: %w", err)
	}
	return nil
}

// remoteObject is a JavaScript value.
type remoteObject struct {
	Value               json.RawMessage `json:"value"`
	UnserializableValue string          `json:"unserializableValue"`
	Description         string          `json:"description"`
}

// json returns the value, or nil if there is none.
func (o remoteObject) json() json.RawMessage {
	if o.UnserializableValue != "" {
		return json.RawMessage(strconv.Quote(o.UnserializableValue))
	}
	return o.Value
}
