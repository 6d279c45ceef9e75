package e2b

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// prefixes are the paths of E2B's control API.
var prefixes = []string{"/sandboxes", "/templates", "/snapshots", "/teams", "/volumes", "/volumecontent", "/secrets", "/v2", "/v3"}

// methods are the methods of E2B's control API.
var methods = []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}

// otherOp answers requests of E2B clients that no operation answers, in the form that they can read.
func otherOp(known []op.Op) op.Op {
	routes := http.NewServeMux()
	for _, o := range known {
		for _, route := range append([]string{o.Route}, o.Also...) {
			routes.Handle(route, http.NotFoundHandler())
		}
	}
	o := op.Spec{Name: "e2b_other", Route: prefixes[0] + "/{path...}", Tag: tag, Content: op.ContentAPI, Access: op.AccessRead,
		ReadOnly: true, Doc: "Report a missing operation to an E2B client."}
	for i, prefix := range prefixes {
		o.Also = append(o.Also, prefix)
		if i > 0 {
			o.Also = append(o.Also, prefix+"/{path...}")
		}
	}
	return op.Handle(o, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { refuseOther(w, r, routes) }))
}

func refuseOther(w http.ResponseWriter, r *http.Request, routes *http.ServeMux) {
	var allowed []string
	for _, method := range methods {
		probe := &http.Request{Method: method, URL: r.URL, Host: r.Host}
		if _, pattern := routes.Handler(probe); strings.HasPrefix(pattern, method+" ") {
			allowed = append(allowed, method)
		}
	}
	status, code := http.StatusNotFound, op.NotFound
	message := "this hub has no operation " + r.Method + " for this path; GET /v1/openapi.json lists all operations"
	if len(allowed) > 0 {
		status, code = http.StatusMethodNotAllowed, op.Invalid
		message = "this path does not support " + r.Method + "; use " + strings.Join(allowed, " or ")
		w.Header().Set("Allow", strings.Join(allowed, ", "))
	}
	op.CallOf(r.Context()).Code = code
	b, err := json.Marshal(map[string]any{"code": status, "message": message})
	if err != nil {
		panic(err) // always encodable: the method is a token
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(b) // an error means that the client has disconnected
}
