package local

// UsedImageLayers lists the image layers that sandboxes and snapshots use.
func (p *Provider) UsedImageLayers() ([]string, error) { return p.usedImageLayers() }

// WithoutIDMaps makes the provider treat filesystems as if they did not support ID-mapped mounts.
func (c *Config) WithoutIDMaps() { c.withoutIDMaps = true }
