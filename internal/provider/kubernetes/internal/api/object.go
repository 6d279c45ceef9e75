package api

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// NoteCreated is the annotation that identifies an object created by an earlier attempt.
const NoteCreated = "io.cove.created"

// Meta is the metadata of an object.
type Meta struct {
	Name              string            `json:"name,omitempty"`
	Namespace         string            `json:"namespace,omitempty"`
	UID               string            `json:"uid,omitempty"`
	ResourceVersion   string            `json:"resourceVersion,omitempty"`
	DeletionTimestamp *time.Time        `json:"deletionTimestamp,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	Annotations       map[string]string `json:"annotations,omitempty"`
	OwnerReferences   []OwnerReference  `json:"ownerReferences,omitempty"`
}

// OwnerReference makes the cluster remove an object together with its owner.
type OwnerReference struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
}

// Object is the common part of all objects.
type Object struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
	Metadata   Meta   `json:"metadata"`
}

// List is a page of a list.
type List[T any] struct {
	Metadata struct {
		ResourceVersion string `json:"resourceVersion"`
		Continue        string `json:"continue"`
	} `json:"metadata"`
	Items []T `json:"items"`
}

type watchEvent struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// status is the body of an error.
type status struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// NewObject returns an object of a kind.
func NewObject(version, kind string, m Meta) Object { return Object{version, kind, m} }

// Quantity parses a number of bytes in the format of the API; 0 if it is invalid.
func Quantity(text string) int64 {
	digits := strings.TrimRight(text, "EPTGMkKi")
	n, err := strconv.ParseFloat(digits, 64)
	if err != nil {
		return 0
	}
	unit := map[string]float64{"": 1, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60}[text[len(digits):]]
	return int64(n * unit)
}
