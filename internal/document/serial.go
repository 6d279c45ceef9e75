package document

import (
	"fmt"
	"math"
	"strings"
	"time"
)

const (
	lastDay  = 2958466 // the first of the year 10000
	leapDay  = 60      // 29 February 1900, which Excel believes in
	dayTicks = 24 * 60 * 60 * 1000
)

// time writes a count of days, the way workbooks keep dates, through the fields
// of a date format.
func (s section) time(v float64, date1904 bool) string {
	if v >= lastDay {
		return general(v)
	}
	// Whole milliseconds, rounded to the least that is shown: 0.99999 of a second is the next one.
	step := math.Pow10(3 - s.second)
	ticks := int64(math.Round(v*dayTicks/step) * step)
	day, tick := ticks/dayTicks, ticks%dayTicks
	date, number := calendar(day, date1904)
	var b strings.Builder
	for _, p := range s.pieces {
		b.WriteString(s.part(p, ticks, tick, date, number))
	}
	return b.String()
}

// calendar is the day of a count and its number in the month, which differ for the
// two days that never were: 0 January and 29 February 1900.
func calendar(day int64, date1904 bool) (date time.Time, number int) {
	start := time.Date(1899, 12, 30, 0, 0, 0, 0, time.UTC)
	switch {
	case date1904:
		start = time.Date(1904, 1, 1, 0, 0, 0, 0, time.UTC)
	case day == 0:
		return start.AddDate(0, 0, 2), 0
	case day < leapDay:
		start = start.AddDate(0, 0, 1)
	case day == leapDay:
		return start.AddDate(0, 0, leapDay-1), 29
	}
	date = start.AddDate(0, 0, int(day))
	return date, date.Day()
}

func (s section) part(p piece, ticks, tick int64, date time.Time, number int) string {
	pad := func(n int64) string { return fmt.Sprintf("%0*d", p.n, n) }
	switch p.kind {
	case 'l':
		return p.text
	case 'y':
		if p.n <= 2 {
			return date.Format("06")
		}
		return date.Format("2006")
	case 'M':
		switch p.n {
		case 1, 2:
			return pad(int64(date.Month()))
		case 3:
			return date.Format("Jan")
		case 5:
			return date.Format("Jan")[:1]
		}
		return date.Format("January")
	case 'd':
		switch {
		case p.n == 3:
			return date.Format("Mon")
		case p.n > 3:
			return date.Format("Monday")
		}
		return pad(int64(number))
	case 'h':
		hour := tick / 3600_000
		if p.sum {
			hour = ticks / 3600_000
		} else if s.half {
			hour = (hour+11)%12 + 1
		}
		return pad(hour)
	case 'm':
		if p.sum {
			return pad(ticks / 60_000)
		}
		return pad(tick / 60_000 % 60)
	case 's':
		if p.sum {
			return pad(ticks / 1000)
		}
		return pad(tick / 1000 % 60)
	case '.':
		return fmt.Sprintf(".%03d", tick%1000)[:1+p.n]
	case 'a':
		name := "AM"
		if tick >= dayTicks/2 {
			name = "PM"
		}
		return name[:p.n]
	}
	return ""
}
