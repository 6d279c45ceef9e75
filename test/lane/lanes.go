package main

// lanes are what the targets of the Makefile run. CONTRIBUTING.md shows them in a table.
var lanes = map[string]lane{
	"unit":    {steps: []step{{packages: []string{"./..."}, skip: drivers, timeout: "10m"}}},
	"test":    {steps: testSteps},
	"engines": {steps: engineSteps},
	"nightly": {steps: append(testSteps, engineSteps...), race: true},
}

// drivers are packages that only drive programs.
var drivers = []string{"/test", "/bench"}

var testSteps = []step{
	{packages: []string{"./..."}, skip: drivers, timeout: "30m"},
	{packages: []string{"./test/..."}, parallel: 4, timeout: "30m"},
}

var engineSteps = []step{
	{packages: []string{"./internal/provider/docker", "./internal/provider/kubernetes/...", "./test/cluster", "./test/dist"}, timeout: "40m"},
	{packages: []string{"./internal/isolate"}, run: "TestIsolate/^escape$/gVisor", timeout: "30m"},
	{packages: []string{"./internal/provider/local", "./test/e2e"}, run: "GVisor|HundredCommands", timeout: "30m"},
	{packages: []string{"./internal/guest/convert", "./internal/guest/internal/document"}, timeout: "10m"},
}
