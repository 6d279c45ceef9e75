package local

// Unmap makes the provider do without translation of owners.
func (c *Config) Unmap() { c.unmapped = true }
