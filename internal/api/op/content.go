package op

import "fmt"

// Content is the class of a route's responses. It determines the allowed origins of a response
// and whether a page of another site may open it. Package rest enforces it for all routes.
type Content int

const (
	// ContentAPI is data of the server, such as JSON, events and pictures. It is never an active
	// document, and no page of another site can open it. It is the default of operations that
	// return JSON or events.
	ContentAPI Content = iota + 1
	// ContentPage is a built-in page or a part of one. It has the server's origin and a strict
	// policy. Pages of other sites may link to it.
	ContentPage
	// ContentForeign is a file, record or log that was produced in a sandbox. It is sent as a
	// download, without an origin and without scripts.
	ContentForeign
	// ContentSite is foreign content whose pages must work, such as a service on a port, or VS
	// Code. Its origin differs from the server's, or it has none.
	ContentSite
)

// mustDeclare panics if a raw response has no class. JSON and events have one by default.
func (s *Spec) mustDeclare(raw bool) {
	switch {
	case s.Content != 0:
	case raw:
		panic(fmt.Sprintf("op %s: a raw response requires Content: ContentAPI, ContentPage, ContentForeign or ContentSite", s.Name))
	default:
		s.Content = ContentAPI
	}
}
