// Package identity defines what the pages of a sandbox show about it. A sandbox does not know
// its name, its state or its end, so a hub answers in its place.
package identity

import "time"

// Path is the path of the operation. A hub answers it itself, without waking the sandbox.
const Path = "/v1/sandbox/identity"

// Identity describes a sandbox to people who use its pages.
type Identity struct {
	Name    string `json:"name" doc:"Name of the sandbox; without a hub, the name of the machine"`
	ID      string `json:"id" doc:"ID of the sandbox at its hub; empty without a hub"`
	Owner   string `json:"owner" doc:"Owner of the sandbox; empty if the hub has no tenants"`
	State   string `json:"state" doc:"running, paused, stopped, failed, creating or deleting"`
	Message string `json:"message" doc:"Reason for the state, if there is one"`
	Hub     string `json:"hub" doc:"URL of the hub's page; empty if the caller cannot use it"`

	Share bool `json:"share" doc:"Whether the hub has links to sandboxes"`

	Expires  *time.Time `json:"expires" doc:"When the first deadline of the sandbox is reached: its timeout, or its idle timeout; null: never"`
	OnEnd    string     `json:"on_end" doc:"What happens then: delete, stop or pause"`
	IfUnused bool       `json:"if_unused" doc:"Whether use of the sandbox postpones that time"`
}
