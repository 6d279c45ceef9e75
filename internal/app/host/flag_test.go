package host

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/cove-sandbox/cove/internal/config"
)

func TestFlagsHaveTheTypesOfTheirSettings(t *testing.T) {
	cmd := &cobra.Command{Use: "serve"}
	flags := Flags(cmd, "aio", config.Fields(&config.Aio{}))
	usage := cmd.Flags().FlagUsages()
	for _, want := range []string{
		"--insecure   ", "--display-width int ", "--ticket-ttl duration ", "--body-limit size ", "--wait-ports ints ",
		"--public-hosts list ", "--otlp-headers key=value ", `(default "127.0.0.1:8080")`, "(default 64MiB)", "One of: text, json.",
	} {
		if !strings.Contains(usage, want) {
			t.Errorf("the usage lacks %q:\n%s", want, usage)
		}
	}
	if err := cmd.ParseFlags([]string{"--public-hosts", "a", "--public-hosts", "b,c", "--insecure", "--config=/x"}); err != nil {
		t.Fatal(err)
	}
	want := map[string][]string{"public-hosts": {"a", "b,c"}, "insecure": {"true"}, "config": {"/x"}}
	if d := cmp.Diff(want, flags()); d != "" {
		t.Error(d)
	}
}

func TestSecretFlagsAreWarnedOf(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	WarnOfSecretFlags(log, config.Fields(&config.Aio{}), map[string][]string{"auth-token": {"hunter2"}, "listen": {":1"}})
	if got := out.String(); strings.Count(got, "\n") != 1 ||
		!strings.Contains(got, "flag=--auth-token variable=AUTH_TOKEN") || strings.Contains(got, "hunter2") {
		t.Errorf("got %q, want one warning that names --auth-token and AUTH_TOKEN, without the secret", got)
	}
}
