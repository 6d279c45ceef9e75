package watch

import (
	"fmt"
	"strings"

	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/api"
	"github.com/cove-sandbox/cove/internal/provider/kubernetes/internal/cluster"
	"github.com/cove-sandbox/cove/internal/sandbox"
)

// Pod is the observed state of a Pod.
type Pod struct {
	api.Object
	Status Status `json:"status"`
}

// Status is the part of a Pod that the node reports.
type Status struct {
	Phase                 string            `json:"phase"`
	Reason                string            `json:"reason"`
	Message               string            `json:"message"`
	PodIP                 string            `json:"podIP"`
	Conditions            []condition       `json:"conditions"`
	InitContainerStatuses []containerStatus `json:"initContainerStatuses"`
	ContainerStatuses     []containerStatus `json:"containerStatuses"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type containerStatus struct {
	Name    string         `json:"name"`
	ImageID string         `json:"imageID"`
	State   containerState `json:"state"`
}

type containerState struct {
	Waiting    *waitingState    `json:"waiting"`
	Running    *struct{}        `json:"running"`
	Terminated *terminatedState `json:"terminated"`
}

type waitingState struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type terminatedState struct {
	ExitCode int    `json:"exitCode"`
	Signal   int    `json:"signal"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
}

func (t terminatedState) String() string {
	why := fmt.Sprintf("exited with status %d", t.ExitCode)
	if t.Reason == "OOMKilled" {
		why = "out of memory: " + why
	} else if t.Reason != "" && t.Reason != "Error" && t.Reason != "Completed" {
		why += ": " + t.Reason
	}
	if t.Message != "" {
		why += ": " + t.Message
	}
	return why
}

// Started reports whether the program is running.
func (p Pod) Started() bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == cluster.Container && c.State.Running != nil {
			return p.Status.PodIP != ""
		}
	}
	return false
}

// hasRun reports whether the program is running or has ended.
func (p Pod) hasRun() bool {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == cluster.Container && (c.State.Running != nil || c.State.Terminated != nil) {
			return true
		}
	}
	return false
}

// Ended reports whether the program has ended, and how.
func (p Pod) Ended() (why string, ended bool) {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == cluster.Container && c.State.Terminated != nil {
			return c.State.Terminated.String(), true
		}
	}
	if p.Status.Phase != "Failed" && p.Status.Phase != "Succeeded" {
		return "", false
	}
	for _, c := range p.Status.InitContainerStatuses {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return "installation of the hub's programs " + t.String(), true
		}
	}
	why = "the Pod has ended"
	for _, more := range []string{p.Status.Reason, p.Status.Message} {
		if more != "" {
			why += ": " + more
		}
	}
	return why, true
}

// Fault returns why a Pod cannot start; nil if it can.
func (p Pod) Fault() error {
	for _, all := range [][]containerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range all {
			w := c.State.Waiting
			if w == nil {
				continue
			}
			switch w.Reason {
			case "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
				"RegistryUnavailable", "SignatureValidationFailed":
				return fmt.Errorf("%w: the image of container %q cannot be pulled: %s: %s", sandbox.ErrInvalid, c.Name, w.Reason, w.Message)
			case "CreateContainerConfigError", "CreateContainerError", "RunContainerError":
				return fmt.Errorf("%w: container %q cannot be started: %s: %s", sandbox.ErrNotReady, c.Name, w.Reason, w.Message)
			}
		}
	}
	return nil
}

// Waiting describes what a Pod that has not started waits for; empty if unknown.
func (p Pod) Waiting() string {
	if why, waits := p.Unschedulable(); waits {
		return "; no node can run it: " + why
	}
	for _, all := range [][]containerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for _, c := range all {
			if w := c.State.Waiting; w != nil {
				return fmt.Sprintf("; container %q is waiting (%s), possibly for its image", c.Name, w.Reason)
			}
		}
	}
	return ""
}

// Unschedulable reports whether no node can run the Pod, and why.
func (p Pod) Unschedulable() (why string, waits bool) {
	for _, c := range p.Status.Conditions {
		if c.Type == "PodScheduled" && c.Status == "False" && c.Reason == "Unschedulable" {
			return c.Message, true
		}
	}
	return "", false
}

// ImageDigest returns the image with its digest; empty if the node does not know it by a name of a registry.
func (p Pod) ImageDigest() string {
	for _, c := range p.Status.ContainerStatuses {
		if c.Name == cluster.Container && strings.Contains(c.ImageID, "@sha256:") {
			_, name, found := strings.Cut(c.ImageID, "://")
			if !found {
				name = c.ImageID
			}
			return name
		}
	}
	return ""
}
