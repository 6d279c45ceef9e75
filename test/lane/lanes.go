package main

import "strings"

// lanes are the test lanes that the targets of the Makefile run. CONTRIBUTING.md shows them in a table.
var lanes = map[string]lane{
	"unit":    {steps: []step{{packages: []string{"./..."}, skip: drivers, timeout: "10m"}}},
	"test":    {steps: testSteps},
	"engines": {steps: engineSteps},
	"nightly": {steps: []step{{packages: []string{"./..."}, skip: []string{"/bench"}, race: true, timeout: "240m"}}, race: true},
}

// drivers are packages that only run programs.
var drivers = []string{"/test", "/bench"}

// The packages that take longest come first. Run concurrently, the steps take longer.
var testSteps = []step{
	{packages: []string{"./test/e2e", "./test/page", "./test/..."}, fresh: true, parallel: 2, timeout: "30m"},
	{packages: []string{"./internal/provider/local", "./..."}, skip: drivers, parallel: 2, timeout: "30m"},
}

var engineSteps = []step{
	{packages: []string{
		"./internal/provider/docker", "./internal/provider/kubernetes/...", "./test/cluster", "./test/dist", "./test/newcomer",
	}, timeout: "40m"},
	{packages: []string{"./internal/system/isolate"}, run: "TestIsolate/^escape$/gVisor", timeout: "30m"},
	{
		packages: []string{
			"./internal/app/cove", "./internal/provider/local", "./internal/guest/browser", "./internal/guest/convert",
			"./internal/guest/internal/document", "./internal/guest/jupyter", "./internal/guest/page", "./internal/guest/workbench",
			"./test/e2e", "./test/e2b", "./test/framework", "./test/lane", "./test/mcp", "./test/page",
		},
		run: strings.Join(longTests, "|"), parallel: 2, timeout: "40m",
	},
}

// longTests are the tests with testenv.Long, GVisor or Engine in packages that make test also runs.
var longTests = []string{
	"GVisor", "LibreOffice", "TestActivity", "TestAddressesAreBlocked", "TestAptInstall", "TestBackupAndRestore", "TestBrowserAgents",
	"TestBuildIsKilled", "TestClients", "TestCodingAgents", "TestCorpus", "TestDatabaseInAPrivateNetwork", "TestDocs", "TestDoctorFixes",
	"TestEveryPage", "TestEveryToolWorks",
	"TestEverythingIsKilledUnderLoad", "TestGuard", "TestGuideInOneLanguage", "TestHARIsValid", "TestHeaderOnOtherHubs", "TestHeavyPages",
	"TestHeavyPrograms", "TestHostile",
	"TestHundredAtOnce", "TestHundredCommands", "TestHungBrowserIsReplaced", "TestInstallLab", "TestInstallPython", "TestInstalledKernels",
	"TestJavaIsInstalledOnFirstUse", "TestKilledRunLeavesNothing",
	"TestLargeResultsStaySmall", "TestNoPortAdmitsAnotherLocalUser", "TestOutboundWithoutRoot", "TestPagesHaveTheirOrigins",
	"TestPictures", "TestProviderWithoutRoot", "TestRealDocuments", "TestRoundsLeaveNothing", "TestServersInTheBrowser", "TestSessions",
	"TestShippedEnvironments", "TestTemplates",
	"TestUpgradeUnderLoad", "TestUsersPackageManagersWithoutRoot", "TestVenvIsBuiltOnce", "TestWall", "TestWide",
	"TestWorkbench",
}
