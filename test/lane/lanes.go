package main

import "strings"

// lanes are what the targets of the Makefile run. CONTRIBUTING.md shows them in a table.
var lanes = map[string]lane{
	"unit":    {steps: []step{{packages: []string{"./..."}, skip: drivers, timeout: "10m"}}},
	"test":    {steps: testSteps, together: true},
	"engines": {steps: engineSteps},
	"nightly": {steps: []step{{packages: []string{"./..."}, skip: []string{"/bench"}, race: true, timeout: "240m"}}, race: true},
}

// drivers are packages that only drive programs.
var drivers = []string{"/test", "/bench"}

var testSteps = []step{
	{packages: []string{"./..."}, skip: drivers, atOnce: 2, parallel: 2, timeout: "30m"},
	{packages: []string{"./test/..."}, fresh: true, atOnce: 2, parallel: 2, timeout: "30m"},
}

var engineSteps = []step{
	{packages: []string{"./internal/provider/docker", "./internal/provider/kubernetes/...", "./test/cluster", "./test/dist"}, timeout: "40m"},
	{packages: []string{"./internal/isolate"}, run: "TestIsolate/^escape$/gVisor", timeout: "30m"},
	{
		packages: []string{
			"./internal/provider/local", "./internal/guest/browser", "./internal/guest/convert", "./internal/guest/internal/document",
			"./internal/guest/workbench", "./test/e2e", "./test/e2b", "./test/lane", "./test/page",
		},
		run: strings.Join(longTests, "|"), parallel: 2, timeout: "40m",
	},
}

// longTests are the tests with testenv.Long, GVisor or Engine in packages that make test runs, too.
var longTests = []string{
	"GVisor", "LibreOffice", "TestRealDocuments", "TestClients",
	"TestAptInstall", "TestHeavyPrograms", "TestHundredCommands", "TestLargeResultsStaySmall", "TestNoPortAdmitsAnotherLocalUser",
	"TestServersInTheBrowser", "TestWide", "TestShippedEnvironments", "TestDoctorFixes", "TestHundredAtOnce", "TestInstallLab",
	"TestAddressesAreBlocked", "TestHungBrowserIsReplaced", "TestGuard", "TestKilledRunLeavesNothing", "TestProviderWithoutRoot",
	"TestCorpus", "TestEveryPage", "TestHostile", "TestPagesHaveTheirOrigins", "TestWorkbench",
}
