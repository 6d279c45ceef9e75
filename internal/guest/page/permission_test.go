package page_test

import (
	"testing"

	"github.com/cove-sandbox/cove/internal/guest/page/internal/content"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/prompt"
	"github.com/cove-sandbox/cove/internal/guest/page/internal/tablist"
)

const (
	askPosition = `new Promise(done => navigator.geolocation.getCurrentPosition(p => done(p.coords.latitude + "," ` +
		`+ p.coords.longitude), e => done("error " + e.code)))`
	askState = `navigator.permissions.query({name: "geolocation"}).then(s => s.state)`
)

// testPermissions checks that permissions are denied unless an operation has set something else, so that no page waits.
func testPermissions(t *testing.T, r *fixture) {
	r.show(t, "<h1>Asks</h1>")
	wantEqual(t, "a position by default", r.eval(t, askPosition), `"error 1"`)
	wantEqual(t, "notifications by default", r.eval(t, `Notification.requestPermission()`), `"denied"`)
	wantEqual(t, "the clipboard by default", r.eval(t, `navigator.clipboard.readText().then(() => "read", e => e.name)`), `"NotAllowedError"`)
	wantEqual(t, "a camera by default", r.eval(t, `navigator.permissions.query({name: "camera"}).then(s => s.state)`), `"denied"`)

	set := func(in prompt.PermissionsIn) []prompt.Permission {
		t.Helper()
		list, err := r.SetPermissions(ctx(t), in)
		must(t, err)
		return list
	}
	list := set(prompt.PermissionsIn{Permissions: []string{"geolocation", "notifications", "clipboard-read"},
		Setting: "granted", Geolocation: &prompt.Geolocation{Latitude: 52.5, Longitude: 13.4, Accuracy: 5}})
	found := 0
	for _, p := range list {
		if p.Setting == "granted" && p.Origin == "" {
			found++
		}
	}
	wantEqual(t, "the granted permissions in the list", found, 3)
	wantEqual(t, "a granted position", r.eval(t, askPosition), `"52.5,13.4"`)
	wantEqual(t, "granted notifications", r.eval(t, `Notification.requestPermission()`), `"granted"`)

	made, err := r.CreateTab(ctx(t), tablist.CreateTabIn{})
	must(t, err)
	r.show(t, "<h1>Another tab</h1>")
	wantEqual(t, "the position in a new tab", r.eval(t, askPosition), `"52.5,13.4"`)
	_, err = r.CloseTab(ctx(t), tablist.TabIn{Index: made.Index})
	must(t, err)
	isolated, err := r.CreateContext(ctx(t), tablist.CreateContextIn{Name: "asks"})
	must(t, err)
	r.show(t, "<h1>Another context</h1>")
	wantEqual(t, "the position in a new context", r.eval(t, askPosition), `"52.5,13.4"`)
	_, err = r.DeleteContext(ctx(t), tablist.ContextIn{ID: isolated.ID})
	must(t, err)

	r.show(t, "<h1>Asks again</h1>")
	set(prompt.PermissionsIn{Permissions: []string{"geolocation"}, Setting: "granted"})
	wantEqual(t, "an unknown position", r.eval(t, askPosition), `"error 2"`)
	set(prompt.PermissionsIn{Permissions: []string{"geolocation"}, Setting: "denied", Origin: r.site + "/any/path"})
	wantEqual(t, "a position denied for the site", r.eval(t, askPosition), `"error 1"`)
	set(prompt.PermissionsIn{Permissions: []string{"geolocation"}, Setting: "prompt"})
	wantEqual(t, "the state of a permission that prompts", r.eval(t, askState), `"prompt"`)
	// A page that waits for a person does not block the next operation.
	_, err = r.Evaluate(ctx(t), content.EvaluateIn{Expression: askPosition, Where: within(1)})
	wantError(t, err, "timed out")
	wantEqual(t, "the page while the prompt is open", r.eval(t, "1 + 1"), "2")
	set(prompt.PermissionsIn{Permissions: []string{"geolocation", "notifications", "clipboard-read"}, Setting: "denied"})
	r.show(t, "<h1>Does not ask</h1>") // closes the open prompt
	wantEqual(t, "a position that is denied again", r.eval(t, askPosition), `"error 1"`)

	for _, wrong := range []struct {
		in   prompt.PermissionsIn
		want string
	}{
		{prompt.PermissionsIn{Permissions: []string{"geo-location"}, Setting: "granted"}, `did you mean "geolocation"?`},
		{prompt.PermissionsIn{Permissions: []string{"everything"}, Setting: "granted"}, "use one of geolocation"},
		{prompt.PermissionsIn{Permissions: []string{"camera"}, Setting: "granted", Origin: "example.com"}, "use a scheme and a host"},
		{prompt.PermissionsIn{Permissions: []string{"camera"}, Setting: "prompt", Origin: "https://example.com"}, "applies to all sites"},
		{prompt.PermissionsIn{Permissions: []string{"camera"}, Setting: "granted", Geolocation: &prompt.Geolocation{}}, "add it to permissions"},
	} {
		_, err := r.SetPermissions(ctx(t), wrong.in)
		wantError(t, err, wrong.want)
	}
}
