package toolset

import "context"

// Files are the files of a workspace.
type Files interface {
	List(ctx context.Context) ([]File, error)
	// Read returns a file of at most limit bytes. A larger file is an error.
	Read(ctx context.Context, path string, limit int64) (data []byte, mediaType string, err error)
	// Watch starts to watch a file before it returns. follow must be called: it calls changed
	// after every change, and returns when ctx ends.
	Watch(ctx context.Context, path string, changed func()) (follow func() error, err error)
}

// Resource describes content that can be read by its URI.
type Resource struct {
	URI, Name, Title, Doc string
	Type                  string // media type; empty: unknown
}

// Resources are resources other than files and skills.
type Resources interface {
	// Offers describes permanent resources, and URI templates such as a://{+name}.
	Offers() []Resource
	// List returns the current resources that match a template.
	List(ctx context.Context) ([]Resource, error)
	// Read returns a resource of at most limit bytes. A larger one is an error.
	Read(ctx context.Context, uri string, limit int64) (data []byte, mediaType string, err error)
}

// Skill is a text with instructions for an agent.
type Skill struct{ Name, Description string }

// Skills are the registered skills.
type Skills interface {
	List(ctx context.Context) ([]Skill, error)
	Read(ctx context.Context, name string) (string, error)
}
