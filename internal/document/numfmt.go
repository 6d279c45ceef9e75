package document

import (
	"math"
	"strconv"
	"strings"
	"unicode/utf8"
)

// format shows numbers as one number format of a workbook does. What it does not
// know (fractions, conditions, calendars other than ours) it shows as the value itself.
type format struct {
	sections []section // none: General
	date1904 bool
}

// section is the part of a format for some signs: what stands around the number
// and how the number is cut.
type section struct {
	pieces  []piece
	date    bool
	elapsed bool // [h]:mm counts hours beyond a day
	half    bool // AM/PM: hours run to 12
	text    bool // it is for what is no number
	second  int  // decimals of seconds

	whole, decimals, needed int // digits: at least, at most and at least after the point
	thousands               bool
	scale                   int // powers of ten: 2 for each %, -3 for each comma at the end
	exponent                int // digits of it; 0: none
	plus                    bool
}

// piece is literal text, the number, or one field of a date by its letters.
type piece struct {
	kind byte // 'l' literal, 'n' the number, 'g' General, 'y', 'M' month, 'd', 'h', 'm' minute, 's', 'a' AM/PM, '.' decimals of a second
	text string
	n    int
	sum  bool // all of it, not what is left of the next larger
}

// builtin are the formats that every workbook has. Those that Excel shows as the
// reader's country writes dates are shown in the one form that nobody misreads.
func builtin(id int) string {
	codes := map[int]string{
		1: "0", 2: "0.00", 3: "#,##0", 4: "#,##0.00", 9: "0%", 10: "0.00%", 11: "0.00E+00",
		14: "yyyy-mm-dd", 15: "d-mmm-yy", 16: "d-mmm", 17: "mmm-yy", 18: "h:mm AM/PM", 19: "h:mm:ss AM/PM", 20: "h:mm", 21: "h:mm:ss", 22: "yyyy-mm-dd h:mm",
		37: "#,##0 ;(#,##0)", 38: "#,##0 ;(#,##0)", 39: "#,##0.00;(#,##0.00)", 40: "#,##0.00;(#,##0.00)",
		45: "mm:ss", 46: "[h]:mm:ss", 47: "mm:ss.0",
	}
	return codes[id]
}

func parseFormat(code string, date1904 bool) format {
	f := format{date1904: date1904}
	if code == "" || len(code) > 255 || strings.EqualFold(code, "General") {
		return f
	}
	for rest, more := code, true; more; {
		var s section
		var ok bool
		if s, rest, more, ok = parseSection(rest); !ok {
			return format{date1904: date1904}
		}
		if !s.text {
			f.sections = append(f.sections, s)
		}
	}
	return f
}

// parseSection reads up to the next semicolon. ok is false for what is not known.
func parseSection(code string) (s section, rest string, more, ok bool) {
	p := sectionParser{code: code}
	for p.i < len(p.code) {
		if p.code[p.i] == ';' {
			return p.finish(code[p.i+1:], true)
		}
		if !p.next() {
			return section{}, "", false, false
		}
	}
	return p.finish("", false)
}

type sectionParser struct {
	section
	code    string
	i       int
	digits  bool // the number began
	over    bool // and ended
	point   bool
	places  int // for digits before the point
	commas  int // since the last digit
	general bool
}

func (p *sectionParser) literal(text string) {
	if p.digits {
		p.over = true
	}
	p.pieces = append(p.pieces, piece{kind: 'l', text: text})
}

// next takes one element of the code.
func (p *sectionParser) next() bool {
	rest := p.code[p.i:]
	var size int
	switch c := rest[0]; {
	case c == '"':
		size = strings.IndexByte(rest[1:], '"') + 2
		if size == 1 {
			return false
		}
		p.literal(rest[1 : size-1])
	case c == '\\' || c == '_' || c == '*':
		_, n := utf8.DecodeRuneInString(rest[1:])
		switch size = 1 + n; {
		case n == 0:
			return false
		case c == '\\':
			p.literal(rest[1:size])
		case c == '_':
			p.literal(" ") // as wide as a character
		}
	case c == '[':
		size = strings.IndexByte(rest, ']') + 1
		if size == 0 || !p.bracket(rest[1:size-1]) {
			return false
		}
	case strings.IndexByte("0#?.,%", c) >= 0 && !p.date:
		return p.digit(c)
	case c == 'E' && p.digits && len(rest) > 2 && (rest[1] == '+' || rest[1] == '-'):
		p.plus, p.over = rest[1] == '+', true
		p.exponent = leading(rest[2:], "0#?")
		size = 2 + p.exponent
		if p.exponent == 0 {
			return false
		}
	case c == '@':
		p.text, size = true, 1
	case c == '/' && p.digits: // a fraction
		return false
	default:
		size = p.letters(rest)
		if size == 0 && (strings.IndexByte("$-+/():!^&'~{}<>= ,.", c) >= 0 || c >= utf8.RuneSelf) {
			_, size = utf8.DecodeRuneInString(rest)
			p.literal(rest[:size])
		}
	}
	p.i += size
	return size > 0
}

// leading counts the leading characters of s that are in set.
func leading(s, set string) int { return len(s) - len(strings.TrimLeft(s, set)) }

// letters takes a field of a date, or General. It returns how long that is.
func (p *sectionParser) letters(rest string) int {
	upper := strings.ToUpper(rest)
	switch {
	case strings.HasPrefix(upper, "GENERAL"):
		p.pieces = append(p.pieces, piece{kind: 'g'})
		p.general = true
		return len("GENERAL")
	case strings.HasPrefix(upper, "AM/PM"):
		p.field(piece{kind: 'a', n: 2})
		p.half = true
		return len("AM/PM")
	case strings.HasPrefix(upper, "A/P"):
		p.field(piece{kind: 'a', n: 1})
		p.half = true
		return len("A/P")
	case strings.IndexByte("YMDHS", upper[0]) >= 0:
		n := leading(upper, upper[:1])
		p.field(piece{kind: upper[0] | 0x20, n: n})
		return n
	case p.date && strings.HasPrefix(rest, ".0"):
		n := leading(rest[1:], "0")
		p.second = min(n, 3)
		p.field(piece{kind: '.', n: p.second})
		return 1 + n
	}
	return 0
}

// digit takes a placeholder of the number itself.
func (p *sectionParser) digit(c byte) bool {
	p.i++
	if c == '%' {
		p.scale += 2
		p.literal("%")
		return true
	}
	if p.over { // literals between digits, as in telephone numbers
		return false
	}
	if !p.digits {
		p.digits = true
		p.pieces = append(p.pieces, piece{kind: 'n'})
	}
	switch {
	case c == '.' && p.point:
		return false
	case c == '.':
		p.point = true
	case c == ',':
		p.commas++
		return true
	default:
		if p.commas > 0 {
			p.thousands, p.commas = true, 0
		}
		switch {
		case p.point:
			p.decimals++
			if c == '0' {
				p.needed = p.decimals
			}
		default:
			if p.places++; c == '0' || p.whole > 0 {
				p.whole++
			}
		}
	}
	return true
}

// bracket takes what stands in [ ]: colours, currencies, elapsed time.
func (p *sectionParser) bracket(s string) bool {
	lower := strings.ToLower(s)
	switch lower {
	case "h", "hh", "m", "mm", "s", "ss":
		p.elapsed = true
		p.field(piece{kind: lower[0], n: len(lower), sum: true})
		return true
	case "black", "blue", "cyan", "green", "magenta", "red", "white", "yellow":
		return true
	}
	if strings.HasPrefix(lower, "color") {
		return true
	}
	if currency, ok := strings.CutPrefix(s, "$"); ok {
		currency, _, _ = strings.Cut(currency, "-")
		if currency != "" {
			p.literal(currency)
		}
		return true
	}
	return false // a condition
}

func (p *sectionParser) field(f piece) {
	p.date = true
	p.pieces = append(p.pieces, f)
}

func (p *sectionParser) finish(rest string, more bool) (section, string, bool, bool) {
	p.scale -= 3 * p.commas
	if p.date && (p.digits || p.general) || p.exponent > 0 && p.places > 1 {
		return section{}, "", false, false
	}
	p.months()
	return p.section, rest, more, true
}

// months tells months from minutes, which have the same letter: minutes follow
// hours or precede seconds.
func (p *sectionParser) months() {
	var fields []*piece
	for i := range p.pieces {
		if k := p.pieces[i].kind; k != 'l' && k != 'a' {
			fields = append(fields, &p.pieces[i])
		}
	}
	for i, f := range fields {
		minute := f.sum || i > 0 && fields[i-1].kind == 'h' || i+1 < len(fields) && fields[i+1].kind == 's'
		if f.kind == 'm' && (!minute || f.n > 2) {
			f.kind = 'M'
		}
	}
}

// show writes a value; what is no number stays as it is.
func (f format) show(raw string) string {
	v, err := strconv.ParseFloat(raw, 64)
	if err != nil || math.IsInf(v, 0) || math.IsNaN(v) {
		return raw
	}
	if len(f.sections) == 0 {
		return general(v)
	}
	s, sign := f.sections[0], ""
	switch {
	case v < 0 && len(f.sections) > 1:
		s, v = f.sections[1], -v // its own literals say that it is negative
	case v < 0:
		v, sign = -v, "-"
	case v == 0 && len(f.sections) > 2:
		s = f.sections[2]
	}
	if s.date {
		if sign != "" {
			return general(-v)
		}
		return s.time(v, f.date1904)
	}
	var b strings.Builder
	for _, p := range s.pieces {
		switch p.kind {
		case 'l':
			b.WriteString(p.text)
		case 'n':
			number := s.number(v)
			if strings.Trim(number, "0.,") == "" {
				sign = "" // what is rounded to nothing has no sign
			}
			b.WriteString(number)
		case 'g':
			b.WriteString(general(v))
		}
	}
	return sign + b.String()
}

// general writes a number with the 15 digits that Excel keeps.
func general(v float64) string {
	if v == 0 {
		return "0"
	}
	v, _ = strconv.ParseFloat(strconv.FormatFloat(v, 'e', 14, 64), 64)
	if a := math.Abs(v); a >= 1e-9 && a < 1e21 {
		return strconv.FormatFloat(v, 'f', -1, 64)
	}
	return strconv.FormatFloat(v, 'E', -1, 64)
}

// number writes the digits of v, which is not negative.
func (s section) number(v float64) string {
	if s.exponent > 0 {
		mantissa, exp, _ := strings.Cut(strconv.FormatFloat(v, 'E', s.decimals, 64), "E")
		n, _ := strconv.Atoi(exp)
		sign := ""
		if n < 0 {
			sign, n = "-", -n
		} else if s.plus {
			sign = "+"
		}
		digits := strconv.Itoa(n)
		return mantissa + "E" + sign + strings.Repeat("0", max(s.exponent-len(digits), 0)) + digits
	}
	whole, decimals := fixed(v, s.scale, s.decimals)
	for len(decimals) > s.needed && strings.HasSuffix(decimals, "0") {
		decimals = decimals[:len(decimals)-1]
	}
	whole = strings.TrimLeft(whole, "0")
	whole = strings.Repeat("0", max(s.whole-len(whole), 0)) + whole
	if s.thousands {
		for i := len(whole) - 3; i > 0; i -= 3 {
			whole = whole[:i] + "," + whole[i:]
		}
	}
	if decimals != "" {
		return whole + "." + decimals
	}
	return whole
}

// fixed writes v·10^scale with a number of decimals, rounded as people round: on
// the decimal digits, half up.
func fixed(v float64, scale, decimals int) (string, string) {
	mantissa, exp, _ := strings.Cut(strconv.FormatFloat(v, 'e', 14, 64), "e")
	n, _ := strconv.Atoi(exp)
	digits := strings.Replace(mantissa, ".", "", 1)
	point := 1 + n + scale // digits before the decimal point
	if point < 0 {
		digits, point = strings.Repeat("0", min(-point, 400))+digits, 0
	}
	keep := point + decimals
	digits += strings.Repeat("0", max(keep+1-len(digits), 0))
	up := digits[keep] >= '5'
	b := []byte("0" + digits[:keep])
	for i := len(b) - 1; up && i >= 0; i-- {
		if up = b[i] == '9'; up {
			b[i] = '0'
		} else {
			b[i]++
		}
	}
	return string(b[:point+1]), string(b[point+1:])
}
