package mcp

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	gomcp "github.com/modelcontextprotocol/go-sdk/mcp"
)

// TestResourcesAndPrompts: files, skills and the guide can be read without a tool, and skills are prompts.
// A subscription to a file reports its changes and its removal.
func TestResourcesAndPrompts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "skills", "pdf"), 0o700))
	must(t, os.WriteFile(filepath.Join(dir, "skills", "pdf", "SKILL.md"),
		[]byte("---\nname: pdf\ndescription: Fills PDF forms.\n---\nFirst read the form.\n"), 0o600))
	file := filepath.Join(dir, "work", "note with space.txt")
	must(t, os.MkdirAll(filepath.Dir(file), 0o700))
	must(t, os.WriteFile(file, []byte("one"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "work", "large.bin"), make([]byte, 1<<20), 0o600))
	url := serve(t, "AIO_SKILLS_PATH="+filepath.Join(dir, "skills"), "WORKSPACE="+filepath.Dir(file)) + "/mcp"
	changed := make(chan string, 16)
	c := gomcp.NewClient(&gomcp.Implementation{Name: "test", Version: "1"}, &gomcp.ClientOptions{
		ResourceUpdatedHandler: func(_ context.Context, r *gomcp.ResourceUpdatedNotificationRequest) { changed <- r.Params.URI },
	})
	s, err := c.Connect(t.Context(), &gomcp.StreamableClientTransport{Endpoint: url},
		&gomcp.ClientSessionOptions{ProtocolVersion: "2025-11-25"})
	must(t, err)
	defer s.Close()
	checkPrompts(t, s)
	checkResources(t, s, file)
	checkSubscription(t, s, file, changed)
}

// fileURI returns the URI of a file.
func fileURI(path string) string { return "file://" + strings.ReplaceAll(path, " ", "%20") }

func checkPrompts(t *testing.T, s *gomcp.ClientSession) {
	t.Helper()
	prompts, err := s.ListPrompts(t.Context(), nil)
	must(t, err)
	if !slices.ContainsFunc(prompts.Prompts, func(p *gomcp.Prompt) bool { return p.Name == "pdf" && p.Description == "Fills PDF forms." }) {
		t.Errorf("got the prompts %+v, want the skill", prompts.Prompts)
	}
	prompt, err := s.GetPrompt(t.Context(), &gomcp.GetPromptParams{Name: "pdf"})
	must(t, err)
	if text, ok := prompt.Messages[0].Content.(*gomcp.TextContent); !ok || !strings.Contains(text.Text, "First read the form.") {
		t.Errorf("got %+v, want the text of the skill", prompt.Messages[0].Content)
	}
	if _, err := s.GetPrompt(t.Context(), &gomcp.GetPromptParams{Name: "no-such"}); err == nil {
		t.Error("got a prompt that does not exist")
	}
}

// checkResources reads all kinds of resources, and some that cannot be read.
func checkResources(t *testing.T, s *gomcp.ClientSession, file string) {
	t.Helper()
	uri, folder := fileURI(file), filepath.Dir(file)
	listed := map[string]bool{}
	for r, err := range s.Resources(t.Context(), nil) {
		must(t, err)
		listed[r.URI] = true
	}
	for _, want := range []string{"skill://pdf", "sandbox://llms.txt", uri} {
		if !listed[want] {
			t.Errorf("got the resources %v, want %s among them", listed, want)
		}
	}
	for uri, want := range map[string]string{"skill://pdf": "First read the form.", "sandbox://llms.txt": "bash_exec", uri: "one"} {
		r, err := s.ReadResource(t.Context(), &gomcp.ReadResourceParams{URI: uri})
		must(t, err)
		if !strings.Contains(r.Contents[0].Text, want) {
			t.Errorf("%s: got %.200q, want %q in it", uri, r.Contents[0].Text, want)
		}
	}
	for uri, want := range map[string]string{
		"file:///no/such/file": "not found", "skill://no-such": "not found", "file://other-host/etc/hosts": "not found",
		"file://" + filepath.Join(folder, "large.bin"): "file_read", "file://" + folder: "",
	} {
		if _, err := s.ReadResource(t.Context(), &gomcp.ReadResourceParams{URI: uri}); err == nil ||
			!strings.Contains(strings.ToLower(err.Error()), want) {
			t.Errorf("%s: got %v, want an error with %q", uri, err, want)
		}
	}
}

// checkSubscription changes and removes a file with a subscription.
func checkSubscription(t *testing.T, s *gomcp.ClientSession, file string, changed chan string) {
	t.Helper()
	uri := fileURI(file)
	must(t, s.Subscribe(t.Context(), &gomcp.SubscribeParams{URI: uri}))
	must(t, os.WriteFile(file, []byte("two"), 0o600)) // the subscription is active after its response
	if got := <-changed; got != uri {
		t.Errorf("got a change of %s, want %s", got, uri)
	}
	for len(changed) > 0 { // a write can cause two changes
		<-changed
	}
	must(t, os.Remove(file))
	if got := <-changed; got != uri {
		t.Errorf("got a change of %s, want %s", got, uri)
	}
	must(t, s.Unsubscribe(t.Context(), &gomcp.UnsubscribeParams{URI: uri}))
	for _, uri := range []string{"gopher://x", "file:///no/such/folder/file"} {
		if err := s.Subscribe(t.Context(), &gomcp.SubscribeParams{URI: uri}); err == nil {
			t.Errorf("got a subscription to %s, want an error", uri)
		}
	}
}
