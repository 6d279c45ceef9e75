package x11

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jezek/xgb"
	"github.com/jezek/xgb/xproto"
)

// Selection is one of the selections through which applications exchange data.
type Selection byte

const (
	// Clipboard is what copy and paste use.
	Clipboard Selection = iota
	// Primary is the selected text, which the middle mouse button pastes.
	Primary
)

// UTF8Text is the target of text.
const UTF8Text = "UTF8_STRING"

// ErrNoContent is wrapped by errors about a selection that is empty or lacks the requested form.
var ErrNoContent = errors.New("the selection has no such content")

// Content is data in all offered forms, by target: UTF8_STRING, text/html, image/png and so on.
type Content map[string][]byte

// Text returns content that is plain text.
func Text(s string) Content { return Content{UTF8Text: []byte(s)} }

// SelectionText reads a selection as text.
func (c *Conn) SelectionText(ctx context.Context, sel Selection) (string, error) {
	return do(ctx, c, c.reads, func() (string, error) {
		for _, target := range []string{UTF8Text, "text/plain;charset=utf-8", "text/plain"} {
			b, err := c.convert(ctx, sel, target)
			if errors.Is(err, ErrNoContent) {
				continue
			}
			if err != nil {
				return "", fmt.Errorf("read selection: %w", err)
			}
			return strings.ToValidUTF8(string(b), string(utf8.RuneError)), nil
		}
		latin, err := c.convert(ctx, sel, "STRING")
		if err != nil {
			return "", fmt.Errorf("read selection as text: %w", err)
		}
		runes := make([]rune, len(latin))
		for i, b := range latin {
			runes[i] = rune(b)
		}
		return string(runes), nil
	})
}

// SelectionData reads a selection in one form.
func (c *Conn) SelectionData(ctx context.Context, sel Selection, target string) ([]byte, error) {
	return do(ctx, c, c.reads, func() ([]byte, error) {
		b, err := c.convert(ctx, sel, target)
		if err != nil {
			return nil, fmt.Errorf("read selection as %s: %w", target, err)
		}
		return b, nil
	})
}

// SelectionTargets lists the forms of a selection.
func (c *Conn) SelectionTargets(ctx context.Context, sel Selection) ([]string, error) {
	return do(ctx, c, c.reads, func() ([]string, error) {
		names, err := c.targets(ctx, sel)
		if err != nil {
			return nil, fmt.Errorf("list forms of selection: %w", err)
		}
		return names, nil
	})
}

// SelectionContent reads a selection in every useful form, so that it can be offered again later. It omits duplicates in
// inferior forms, and content beyond Config.MaxClipboard.
func (c *Conn) SelectionContent(ctx context.Context, sel Selection) (Content, error) {
	return do(ctx, c, c.reads, func() (Content, error) {
		names, err := c.targets(ctx, sel)
		if err != nil {
			return nil, fmt.Errorf("read selection: %w", err)
		}
		content := Content{}
		total := 0
		for _, name := range worthKeeping(names) {
			b, err := c.convert(ctx, sel, name)
			if errors.Is(err, ErrNoContent) || errors.Is(err, errTooLarge) || total+len(b) > c.cfg.MaxClipboard {
				continue
			}
			if err != nil {
				return nil, fmt.Errorf("read selection as %s: %w", name, err)
			}
			content[name] = b
			total += len(b)
		}
		if len(content) == 0 {
			return nil, fmt.Errorf("read selection: %w", ErrNoContent)
		}
		return content, nil
	})
}

// maxTargets bounds the number of forms.
const maxTargets = 64

// worthKeeping drops targets without content, and forms that owners convert from others.
func worthKeeping(names []string) []string {
	hasText := slices.Contains(names, UTF8Text)
	hasPNG := slices.Contains(names, "image/png")
	var keep []string
	for _, n := range names {
		switch {
		case len(keep) == maxTargets:
		case slices.Contains([]string{"TARGETS", "TIMESTAMP", "MULTIPLE", "SAVE_TARGETS", "DELETE", "INSERT_SELECTION", "INSERT_PROPERTY"}, n):
		case hasText && slices.Contains([]string{"TEXT", "STRING", "COMPOUND_TEXT", "text/plain", "text/plain;charset=utf-8"}, n):
		case hasPNG && strings.HasPrefix(n, "image/") && n != "image/png":
		default:
			keep = append(keep, n)
		}
	}
	return keep
}

func (c *Conn) targets(ctx context.Context, sel Selection) ([]string, error) {
	raw, err := c.convert(ctx, sel, "TARGETS")
	if err != nil {
		return nil, err
	}
	var names []string
	for ; len(raw) >= 4 && len(names) < 2*maxTargets; raw = raw[4:] {
		r, err := xproto.GetAtomName(c.x, xproto.Atom(xgb.Get32(raw))).Reply()
		if err := ignoreX(err); err != nil {
			return nil, err
		}
		if r != nil {
			names = append(names, r.Name)
		}
	}
	return names, nil
}

var errTooLarge = errors.New("the selection is too large")

// convert requests one form from the selection's owner, and waits for it until ctx ends.
func (c *Conn) convert(ctx context.Context, sel Selection, target string) ([]byte, error) {
	selection, err := c.selectionAtom(sel)
	if err != nil {
		return nil, err
	}
	form, err := c.intern(target)
	if err != nil {
		return nil, err
	}
	owner, err := xproto.GetSelectionOwner(c.x, selection).Reply()
	if err != nil {
		return nil, err
	}
	if owner.Owner == 0 {
		return nil, fmt.Errorf("%w: it is empty", ErrNoContent)
	}
	// Properties alternate, so that the late response to an abandoned request is not used for this one.
	property, err := c.intern(fmt.Sprintf("_COVE_TRANSFER_%d", c.nonce.Add(1)%8))
	if err != nil {
		return nil, err
	}
	xproto.DeleteProperty(c.x, c.window, property)
	response := c.expect(func(ev xgb.Event) bool {
		e, ok := ev.(xproto.SelectionNotifyEvent)
		return ok && e.Requestor == c.window && e.Selection == selection && e.Target == form && (e.Property == property || e.Property == 0)
	})
	defer c.forget(response)
	xproto.ConvertSelection(c.x, c.window, selection, form, property, xproto.TimeCurrentTime)
	ev, err := c.awaitOwner(ctx, response, selection, owner.Owner)
	if err != nil {
		return nil, err
	}
	if ev.(xproto.SelectionNotifyEvent).Property == 0 {
		return nil, fmt.Errorf("%w: its owner does not offer %s", ErrNoContent, target)
	}
	return c.collect(ctx, property)
}

// ownerCheck is how often a reader checks that the owner still exists.
const ownerCheck = 500 * time.Millisecond

// awaitOwner waits for a response of the selection's owner until ctx ends. An owner that closes its window never responds.
func (c *Conn) awaitOwner(ctx context.Context, response *waiter, selection xproto.Atom, owner xproto.Window) (xgb.Event, error) {
	for {
		wait, cancel := context.WithTimeout(ctx, ownerCheck)
		ev, err := c.await(wait, response)
		cancel()
		if err == nil || ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return ev, err
		}
		now, err := xproto.GetSelectionOwner(c.x, selection).Reply()
		if err != nil {
			return nil, err
		}
		if now.Owner != owner {
			return nil, fmt.Errorf("%w: its owner has ended", ErrNoContent)
		}
	}
}

// collect reads the property with the owner's response, in pieces if the owner sends it incrementally.
func (c *Conn) collect(ctx context.Context, property xproto.Atom) ([]byte, error) {
	next := c.expectProperty(property, xproto.PropertyNewValue)
	kind, data, err := c.takeProperty(property, c.cfg.MaxClipboard)
	defer func() { c.forget(next) }()
	if err != nil || kind != c.atoms.incr {
		return data, err
	}
	// Taking the property requests the next piece; an empty one ends the transfer.
	data = nil
	for {
		if _, err := c.await(ctx, next); err != nil {
			return nil, err
		}
		c.forget(next)
		next = c.expectProperty(property, xproto.PropertyNewValue)
		_, piece, err := c.takeProperty(property, c.cfg.MaxClipboard-len(data))
		if err != nil {
			return nil, err
		}
		if len(piece) == 0 {
			return data, nil
		}
		data = append(data, piece...)
	}
}

func (c *Conn) expectProperty(property xproto.Atom, state byte) *waiter {
	return c.expect(func(ev xgb.Event) bool {
		e, ok := ev.(xproto.PropertyNotifyEvent)
		return ok && e.Window == c.window && e.Atom == property && e.State == state
	})
}

// takeProperty reads and deletes a property of our window. It refuses more than limit bytes.
func (c *Conn) takeProperty(property xproto.Atom, limit int) (xproto.Atom, []byte, error) {
	words := uint32(limit+3)/4 + 1
	r, err := xproto.GetProperty(c.x, true, c.window, property, xproto.GetPropertyTypeAny, 0, words).Reply()
	if err != nil {
		return 0, nil, err
	}
	if r.BytesAfter > 0 || len(r.Value) > limit {
		xproto.DeleteProperty(c.x, c.window, property)
		return 0, nil, fmt.Errorf("%w (limit %d bytes)", errTooLarge, c.cfg.MaxClipboard)
	}
	return r.Type, r.Value, nil
}

func (c *Conn) selectionAtom(sel Selection) (xproto.Atom, error) {
	switch sel {
	case Clipboard:
		return c.atoms.clipboard, nil
	case Primary:
		return xproto.AtomPrimary, nil
	}
	return 0, fmt.Errorf("invalid selection %d; use Clipboard or Primary", sel)
}
