package cluster_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/cove-sandbox/cove/test/cluster"
)

// testManifest: manifests with all settings of the public image work on a real cluster.
func testManifest(t *testing.T, k *cluster.Kubernetes) {
	text, err := os.ReadFile("testdata/public-kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	collections := map[string]string{"Deployment": "/apis/apps/v1/namespaces/default/deployments",
		"Service": "/api/v1/namespaces/default/services"}
	for d := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var object map[string]any
		if err := d.Decode(&object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		if err := k.Do(t.Context(), http.MethodPost, collections[object["kind"].(string)], object, nil); err != nil {
			t.Fatal(err)
		}
	}
	k.Await(t, "both copies are ready", func() bool {
		var deployment struct{ Status struct{ ReadyReplicas int } }
		err := k.Do(t.Context(), http.MethodGet, collections["Deployment"]+"/aio-sandbox", nil, &deployment)
		return err == nil && deployment.Status.ReadyReplicas == 2
	})
	var service struct{ Spec struct{ ClusterIP string } }
	if err := k.Do(t.Context(), http.MethodGet, collections["Service"]+"/aio-sandbox", nil, &service); err != nil {
		t.Fatal(err)
	}
	// Connections fail until the Service has an endpoint.
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 20 * time.Second}
	var reply struct{ Data struct{ Stdout string } }
	k.Await(t, "a sandbox answers", func() bool { // the Service gets a Pod later than the Deployment
		resp, err := client.Post("http://"+service.Spec.ClusterIP+"/v1/bash/exec", "application/json",
			bytes.NewBufferString(`{"command":"id -un; sudo id -u"}`))
		if err != nil {
			return false
		}
		defer resp.Body.Close()
		return resp.StatusCode == http.StatusOK && json.NewDecoder(resp.Body).Decode(&reply) == nil
	})
	if want := "gem\n0\n"; reply.Data.Stdout != want {
		t.Errorf("got %q, want %q", reply.Data.Stdout, want)
	}
}
