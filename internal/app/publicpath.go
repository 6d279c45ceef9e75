package app

import (
	"net/http"

	"github.com/cove-sandbox/cove/internal/api/op"
	"github.com/cove-sandbox/cove/internal/surface/rest"
	"github.com/cove-sandbox/cove/internal/system/proc"
	"github.com/cove-sandbox/cove/web"
)

// publicPaths are paths of the public image that redirect to other paths.
func publicPaths(runner *proc.Runner) []op.Op {
	return []op.Op{
		openProgram(runner, "codex", "@openai/codex"),
		openProgram(runner, "opencode", "opencode-ai"),
		rest.Assets("static", "/static", web.Static),
		op.Handle(op.Spec{Name: "browser_ui", Content: op.ContentPage, Access: op.AccessRead,
			Route: "GET /browser-ui", Tag: "pages", Doc: "Redirects to the page that shows the display."},
			redirectTo("vnc/index.html?autoconnect=true")),
	}
}

// notebookPages is the small notebook, which requires only a kernel.
func notebookPages(disabled bool) []op.Op {
	if disabled {
		return nil
	}
	return rest.Page("notebook", "/notebook", "A notebook that runs its cells in the kernels of the code operations.", web.Sandbox)
}

// openProgram redirects to the terminal, which offers to run the program. The program inherits the
// variables that configure it.
func openProgram(runner *proc.Runner, name, pkg string) op.Op {
	terminal := redirectTo("terminal?command=" + name)
	doc := "Redirects to the terminal, which offers to run " + name + "."
	return op.Handle(op.Spec{Name: name + "_page", Content: op.ContentPage, Route: "GET /" + name, Tag: "pages", Doc: doc},
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := runner.Look(name); !ok {
				http.Error(w, name+" is not installed in this sandbox; install it with: npm install -g "+pkg, http.StatusNotFound)
				return
			}
			terminal.ServeHTTP(w, r)
		}))
}

// redirectTo redirects to a path relative to the request's folder, so that it works below
// any path prefix.
func redirectTo(location string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusTemporaryRedirect)
	})
}
