package op

import "fmt"

// Content is the class of what a route replies with. It decides which origin the reply may
// have and whether a page of another site may open it. Package rest enforces it for every
// route in one place.
type Content int

const (
	// ContentAPI is data that we produce, such as JSON, events and pictures. It is never an
	// active document, and no page of another site can open it. Operations that reply with
	// JSON or events have this class by default.
	ContentAPI Content = iota + 1
	// ContentPage is a page of ours or a part of one: it has the server's origin and a strict
	// policy. Pages of other sites may link to it.
	ContentPage
	// ContentForeign is a file, record or log that was produced in a sandbox. It is sent as a
	// download, without an origin and without scripts.
	ContentForeign
	// ContentSite is foreign content that consists of pages which must work, such as a
	// service on a port, or VS Code. It has an origin other than the server's, or none.
	ContentSite
)

// mustDeclare panics if a raw reply has no class. Replies in JSON and events have one by default.
func (s *Spec) mustDeclare(raw bool) {
	switch {
	case s.Content != 0:
	case raw:
		panic(fmt.Sprintf("op %s: a raw reply requires Content: ContentAPI, ContentPage, ContentForeign or ContentSite", s.Name))
	default:
		s.Content = ContentAPI
	}
}
