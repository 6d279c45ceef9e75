package arch

// checkSleep finds tests that sleep.
func (r Rules) checkSleep(f *file) []Fault {
	_, bubble := f.imports()["synctest"]
	if !f.test || bubble || f.pkg == "bench" {
		return nil
	}
	var faults []Fault
	for use, name := range uses(f) {
		if name == "time.Sleep" {
			faults = append(faults, f.fault("sleep", use.Pos(), "time.Sleep in a test: poll with testenv.Poll, or use testing/synctest"))
		}
	}
	return faults
}
