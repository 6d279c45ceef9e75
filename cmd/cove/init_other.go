//go:build !linux

package main

// runInit does nothing: sandboxes run on Linux.
func runInit() {}
