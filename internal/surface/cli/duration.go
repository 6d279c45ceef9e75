package cli

import (
	"encoding/json"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/cove-sandbox/cove/internal/api/op"
)

// Unit is the unit of a numeric field that is a duration.
type Unit struct {
	Size  time.Duration
	Named bool // the name of the field is the unit, so a plain number is clear
}

var errNoUnit = errors.New("a duration has a number and a unit, such as 90s, 5m, 2h or 7d")

// parseDuration reads a number and a unit. Operations measure in different units, so a plain number is rejected, unless it is
// the same in all of them: 0, and -1 for never.
func parseDuration(text string) (time.Duration, error) {
	switch text {
	case "0":
		return 0, nil
	case "-1":
		return -1, nil
	}
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); err != nil && ok {
		d, err = time.ParseDuration(days + "h")
		d *= 24
	}
	if err != nil || d < 0 {
		return 0, errNoUnit
	}
	return d, nil
}

// in converts the text of a flag to a number of units, which the operation expects.
func (u Unit) in(text string) (json.RawMessage, error) {
	if _, err := strconv.ParseFloat(text, 64); u.Named && err == nil && json.Valid([]byte(text)) {
		return json.RawMessage(text), nil
	}
	d, err := parseDuration(text)
	if err != nil {
		return nil, err
	}
	if d == -1 {
		return json.RawMessage("-1"), nil
	}
	return op.JSON(float64(d) / float64(u.Size))
}

// DurationVar adds a flag with the same syntax as the fields of operations that are durations. 0 and -1 mean no limit.
func DurationVar(f *pflag.FlagSet, to *time.Duration, name, usage string) {
	f.Var((*duration)(to), name, usage)
}

type duration time.Duration

func (d *duration) Set(text string) error {
	v, err := parseDuration(text)
	*d = duration(max(v, 0))
	return err
}

func (d *duration) String() string { return time.Duration(*d).String() }

// Type is shown by the help.
func (d *duration) Type() string { return "duration" }
