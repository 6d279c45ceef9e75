package toolset

import "context"

// Files are the files of a workspace.
type Files interface {
	List(ctx context.Context) ([]File, error)
	// Read returns at most limit bytes of a file; more of it is an error.
	Read(ctx context.Context, path string, limit int64) (data []byte, mediaType string, err error)
	// Watch watches the file from its return on. follow must be called: it calls changed
	// after every change, and returns when ctx ends.
	Watch(ctx context.Context, path string, changed func()) (follow func() error, err error)
}

// Resource describes something that can be read by its URI.
type Resource struct {
	URI, Name, Title, Doc string
	Type                  string // media type; "": unknown
}

// Resources can be read beside files and skills.
type Resources interface {
	// Offers describes what is always there, and URI templates such as a://{+name}.
	Offers() []Resource
	// List returns what is there now and fits a template.
	List(ctx context.Context) ([]Resource, error)
	// Read returns at most limit bytes of what a URI names; more of it is an error.
	Read(ctx context.Context, uri string, limit int64) (data []byte, mediaType string, err error)
}

// Skill is a text that tells an agent how to do something.
type Skill struct{ Name, Description string }

// Skills are the registered ones.
type Skills interface {
	List(ctx context.Context) ([]Skill, error)
	Read(ctx context.Context, name string) (string, error)
}
