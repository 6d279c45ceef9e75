package locate

import (
	"context"
	"encoding/json"
	"regexp"
	"strings"
	"sync"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/guest/internal/tab"
)

// isFunction matches the beginning of a function, which is called.
var isFunction = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`^(async\s+)?(function\b|\([^()]*\)\s*=>|\(\s*\{[^=]*\}\s*\)\s*=>|[\w$]+\s*=>)`)
})

// RunScript runs a script, which may be a function, an expression or statements.
func RunScript(ctx context.Context, t *tab.Tab, script string) (json.RawMessage, error) {
	text := strings.TrimSpace(script)
	bare := strings.TrimRight(text, "; \n\t")
	// In a block, declared names do not conflict with those of the next script.
	statements := "{\n" + text + "\n}"
	forms := []string{statements}
	switch {
	case isFunction().MatchString(bare):
		forms = []string{"(" + bare + ")()", statements}
	case strings.HasPrefix(text, "{"): // an object rather than a block
		forms = []string{"(" + bare + ")", statements}
	}
	forms = append(forms, "(async () => {\n"+text+"\n})()")
	var r EvalResult
	for _, form := range forms {
		r = EvalResult{}
		err := t.Call(ctx, "Runtime.evaluate", map[string]any{
			"expression": form, "awaitPromise": true, "userGesture": true, "replMode": form == statements,
		}, &r)
		if err != nil {
			return nil, err
		}
		// Statements end with the promise itself.
		if id := r.Result.ObjectID; r.Exception == nil && r.Result.Subtype == "promise" && id != "" {
			r = EvalResult{}
			if err := t.Call(ctx, "Runtime.awaitPromise", map[string]any{"promiseObjectId": id}, &r); err != nil {
				return nil, err
			}
		}
		// Only a script that cannot be parsed is tried in another form: it had no effect.
		if r.Exception == nil || r.Exception.Exception.Class != "SyntaxError" {
			break
		}
		if strings.HasPrefix(text, "throw") || strings.Contains(r.Exception.Exception.Text, "\n    at ") {
			break
		}
	}
	if x := r.Exception; x != nil {
		why := x.Exception.Text
		if why == "" {
			why = strings.TrimSpace(x.Text + " " + string(x.Exception.Value))
		}
		return nil, op.Errorf(op.Invalid, "the script failed: %s", why)
	}
	return valueOf(ctx, t, r.Result)
}

// valueOf returns a JavaScript value as JSON.
func valueOf(ctx context.Context, t *tab.Tab, v Remote) (json.RawMessage, error) {
	switch {
	case v.Unserial != "":
		return json.Marshal(strings.TrimSuffix(v.Unserial, "n"))
	case v.Type == "symbol" || v.Type == "function" && v.ObjectID == "":
		return json.Marshal(v.Text)
	case v.ObjectID == "":
		return v.Value, nil
	}
	var r EvalResult
	err := t.Call(ctx, "Runtime.callFunctionOn", map[string]any{"objectId": v.ObjectID,
		"functionDeclaration": serializer, "returnByValue": true}, &r)
	// Otherwise the page keeps the value until it navigates.
	_ = t.Call(ctx, "Runtime.releaseObject", map[string]any{"objectId": v.ObjectID}, nil)
	if err != nil {
		return nil, err
	}
	if r.Exception != nil {
		return nil, op.Errorf(op.Invalid, "the value cannot be returned as JSON: %s", r.Exception.Exception.Text)
	}
	var text string
	if err := json.Unmarshal(r.Result.Value, &text); err != nil {
		return nil, err
	}
	return json.RawMessage(text), nil
}

// serializer converts any value to JSON text.
const serializer = `function() {
	const above = [];
	let left = 200000;
	const show = (v) => {
		if (--left < 0) return '[Truncated]';
		switch (typeof v) {
		case 'undefined': return null;
		case 'bigint': return String(v);
		case 'number': return Number.isFinite(v) ? v : String(v);
		case 'symbol': return String(v);
		case 'function': return '[Function' + (v.name ? ': ' + v.name : '') + ']';
		case 'string': case 'boolean': return v;
		}
		if (v === null) return null;
		if (v instanceof Date) return isNaN(v) ? 'Invalid Date' : v.toISOString();
		if (v instanceof RegExp) return String(v);
		if (v instanceof Error) return {name: v.name, message: v.message, stack: v.stack};
		if (v instanceof Node) return v.nodeType === 9 ? '[Document ' + v.URL + ']' : v.outerHTML || v.textContent;
		if (v === window || Object.prototype.toString.call(v) === '[object Window]') return '[Window]';
		if (above.includes(v)) return '[Circular]';
		if (above.length > 40) return '[Truncated]';
		above.push(v);
		try {
			if (Array.isArray(v) || v instanceof NodeList || v instanceof HTMLCollection ||
				ArrayBuffer.isView(v) && !(v instanceof DataView)) return Array.from(v, show);
			if (v instanceof Set) return Array.from(v, show);
			if (v instanceof Map) {
				return Object.fromEntries(Array.from(v, ([k, x]) => [typeof k === 'object' ? JSON.stringify(show(k)) : String(k), show(x)]));
			}
			if (v instanceof ArrayBuffer) return Array.from(new Uint8Array(v));
			if (typeof v.toJSON === 'function') { try { return show(v.toJSON()); } catch { /* shown by its fields */ } }
			const out = {};
			const names = Object.keys(v);
			if (!names.length && v.constructor && v.constructor !== Object) {
				for (const k in v) { try { if (typeof v[k] !== 'function') names.push(k); } catch { names.push(k); } }
			}
			for (const k of names) { let x; try { x = v[k]; } catch (e) { x = String(e); } if (x !== undefined) out[k] = show(x); }
			return out;
		} finally {
			above.pop();
		}
	};
	return JSON.stringify(show(this));
}`
