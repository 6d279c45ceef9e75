package docker

// Instance returns the label value of the objects of a state folder.
func Instance(cfg Config) string { return instanceOf(cfg.Dir) }
