//go:build race

package shell

// raceEnabled tells that everything takes several times as long.
const raceEnabled = true
