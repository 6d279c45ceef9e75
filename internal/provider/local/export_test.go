package local

// UsedImageLayers lists the image folders that sandboxes and snapshots are built on.
func (p *Provider) UsedImageLayers() ([]string, error) { return p.usedImageLayers() }

// WithoutIDMaps makes the provider work as if no filesystem could translate owners.
func (c *Config) WithoutIDMaps() { c.withoutIDMaps = true }
