// Package arch holds the house rules of the tree as a test: which package may
// import which, who may start processes, that each package says what it is.
package arch
