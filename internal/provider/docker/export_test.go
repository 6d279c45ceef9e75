package docker

// Instance is the value of the label of a state folder's objects.
func Instance(cfg Config) string { return instanceOf(cfg.Dir) }
